#!/bin/sh
# Classify photos with curl only: sh photos.sh [ADDRESS]
set -e
address=${1:-localhost:8000}
cat=$(dirname "$0")/../demo/shoal_demo/cat.jpg
ask() { curl --silent --show-error --fail-with-body "$@"; echo; }

# A file, and the three best labels:
ask "$address/v2/models/photos/classify?top=3" -F "image=@$cat"

# Two files, with the short path:
ask "$address/classify" -F "image=@$cat" -F "image=@$cat;filename=again.jpg" -F top=1

# The file is the body:
ask "$address/classify?top=1" -H 'Content-Type: image/jpeg' --data-binary "@$cat"
