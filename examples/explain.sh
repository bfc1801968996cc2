#!/bin/sh
# Why batches have their sizes, and what would help, as text and as numbers.
#
#     sh examples/explain.sh [localhost:8000]

set -eu
server=${1:-localhost:8000}

echo "some traffic first"
for word in cod eel ray; do
    curl --silent --show-error --fail --output /dev/null "http://$server/v2/models/upper/infer" --data "{
      \"inputs\": [{\"name\": \"text\", \"datatype\": \"BYTES\", \"shape\": [1, 1], \"data\": [\"$word\"]}]
    }"
done

echo "as text"
curl --silent --show-error --fail "http://$server/v2/models/upper/explain?format=text"

echo "as numbers"
curl --silent --show-error --fail "http://$server/v2/models/upper/explain"
echo

echo "all models"
curl --silent --show-error --fail --header "Accept: text/plain" "http://$server/v2/explain"
