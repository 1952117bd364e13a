#!/bin/sh
# Has the server beside it serve the hour that MODELS/published names, whenever that changes.
#
# All models are loaded in one step, or none: the server goes on with the hour before if one of them is damaged. The
# answer, which says why, is printed. The load is tried again after a minute, because a volume may be late.
set -eu
SERVER=${SERVER:?} MODELS=${MODELS:?} TOKEN_FILE=${TOKEN_FILE:?} POLL_S=${POLL_S:-5} RETRY_S=${RETRY_S:-60}

# load HOUR NAME... prints the answer. Fails if that is an error. The token is in no list of processes.
load() {
    hour=$1
    shift
    models=""
    for name in "$@"; do
        models="$models,{\"name\":\"$name\",\"version\":\"$hour\"}"
    done
    sed -n 's/^admin \(.*\)/header = "Authorization: Bearer \1"/p' "$TOKEN_FILE" | head -n 1 |
        curl -sS --fail-with-body -K - "$SERVER/v2/repository/load" -d "{\"models\":[${models#,}]}"
}

loaded=""
next=0
while true; do
    wanted=$(cat "$MODELS/published" 2> /dev/null || true)
    now=$(date +%s)
    if [ -n "$wanted" ] && [ "$wanted" != "$loaded" ] && [ "$now" -ge "$next" ]; then
        # shellcheck disable=SC2086 # a number and names
        if answer=$(load $wanted); then
            loaded=$wanted
            echo "loaded $wanted"
        else
            next=$((now + RETRY_S))
            echo "cannot load $wanted: $answer" >&2
        fi
    fi
    sleep "$POLL_S"
done
