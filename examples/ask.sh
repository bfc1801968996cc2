#!/bin/sh
# Questions about a text: one with all details, several in a pipe, one without an answer.
#
#     sh examples/ask.sh [localhost:8000]

set -eu
server=${1:-localhost:8000}
text=$(mktemp)
trap 'rm -f "$text"' EXIT
cat >"$text" <<END
The stone pier of Ebbing was built in 1874 by the engineer Ada Thornwell, after storms had
carried the wooden one away. Forty-six boats are moored there today, most of them for herring.
END

echo "one question"
shoal ask --http "$server" --text-file "$text" --question "Who built the stone pier?"

echo "one question per line, only the answers"
printf '%s\n' "When was it built?" "How many boats are there?" |
    shoal ask --http "$server" --text-file "$text" --quiet

echo "the text in a pipe, the answer as JSON; the text does not answer this one"
shoal ask --http "$server" --question "How tall is the tower of Pisa?" --json <"$text"
