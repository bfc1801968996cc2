#!/bin/sh
# The protocol by hand, with curl only.
#
#     sh examples/curl.sh [localhost:8000]

set -eu
server=${1:-localhost:8000}

echo "is the server ready?"
curl --silent --show-error --fail --output /dev/null "http://$server/v2/health/ready" && echo "yes"

echo "inputs and outputs of the model"
curl --silent --show-error --fail "http://$server/v2/models/upper"
echo

echo "strings in JSON"
curl --silent --show-error --fail "http://$server/v2/models/upper/infer" --data '{
  "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["a shoal of fish"]}]
}'
echo

echo "the three best of ten classes, with labels"
curl --silent --show-error --fail "http://$server/v2/models/digits/infer" --data '{
  "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 64], "data": [
     0, 0, 0, 12, 13,  5, 0, 0,
     0, 0, 0, 11, 16,  9, 0, 0,
     0, 0, 3, 15, 16,  6, 0, 0,
     0, 7, 15, 16, 16, 2, 0, 0,
     0, 0, 1, 16, 16,  3, 0, 0,
     0, 0, 1, 16, 16,  6, 0, 0,
     0, 0, 1, 16, 16,  6, 0, 0,
     0, 0, 0, 11, 16, 10, 0, 0]}],
  "outputs": [{"name": "probabilities", "parameters": {"classification": 3}}]
}'
echo

echo "statistics"
curl --silent --show-error --fail "http://$server/v2/models/upper/stats"
echo
