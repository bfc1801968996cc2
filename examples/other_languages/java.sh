#!/bin/sh
# A Java client: .proto files from the server, stubs from protoc, then javac and java.
#
#     sh examples/other_languages/java.sh [localhost:8000 [localhost:8001]]
#
# On Debian: apt-get install default-jdk-headless protobuf-compiler protobuf-compiler-grpc-java-plugin \
#     libgrpc-java libprotobuf-java libnetty-java libperfmark-java libgeronimo-annotation-1.3-spec-java

set -eu
server=${1:-localhost:8000}
grpc=${2:-localhost:8001}
here=$(cd "$(dirname "$0")" && pwd)
jars=${JARS:-/usr/share/java}

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cd "$build"

for file in grpc_service.proto model_config.proto; do
    curl --silent --show-error --fail --remote-name "http://$server/proto/$file"
done
protoc --plugin=protoc-gen-grpc-java="$(command -v grpc_java_plugin)" \
    --java_out=. --grpc-java_out=. grpc_service.proto model_config.proto

path=.
for name in grpc-api grpc-context grpc-core grpc-netty grpc-protobuf grpc-protobuf-lite grpc-stub \
    protobuf guava perfmark-api geronimo-annotation-1.3-spec netty-buffer netty-codec \
    netty-codec-http netty-codec-http2 netty-common netty-handler netty-handler-proxy \
    netty-resolver netty-transport; do
    path="$path:$jars/$name.jar"
done
javac -nowarn -cp "$path" -d . inference/*.java "$here/InferClient.java"
java -cp "$path" InferClient "$grpc"
