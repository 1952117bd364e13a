#!/bin/sh
# Publishes an hour: moves what the trainer wrote into the folder of models, and names it in MODELS/published.
#
# The trainer exports to MODELS/.incoming/HOUR/, so that models are in .incoming/HOUR/NAME/HOUR/, and then makes the file
# .incoming/HOUR/complete. HOUR is a whole number that grows, as `date +%Y%m%d%H` prints it. Without the variable HOUR it
# publishes the newest complete hour, with it that one. An older hour that is still in the folder may be named, to go back.
# KEEP hours stay in the folder. Run again, it does what is left to do.
set -eu
MODELS=${MODELS:?} KEEP=${KEEP:-6}

# hours_in FOLDER prints the versions in it, the newest first.
hours_in() {
    find "$1" -mindepth 1 -maxdepth 1 -type d | sed -n 's|.*/\([1-9][0-9]*\)$|\1|p' | sort -rn
}

# put FILE writes it whole, or not at all.
put() {
    cat > "$1.new"
    mv "$1.new" "$1"
}

# link_unchanged NAME HOUR replaces a table by a link to that of the hour before, if the bytes are the same: it is then stored
# once, and read once.
link_unchanged() {
    before=$(hours_in "$MODELS/$1" | sed -n "/^$2\$/{n;p}")
    for file in "$MODELS/$1/$2"/*.safetensors; do
        old=$MODELS/$1/$before/${file##*/}
        if [ -n "$before" ] && cmp -s "$old" "$file" && ln "$old" "$file.new"; then
            mv "$file.new" "$file"
        fi
    done
}

# Moves complete hours, and in each the tables before the collections over them.
if [ -d "$MODELS/.incoming" ]; then
    for hour in $(hours_in "$MODELS/.incoming" | sort -n); do
        folder=$MODELS/.incoming/$hour
        [ -e "$folder/complete" ] || continue
        for kind in tables collections; do
            for version in "$folder"/*/"$hour"; do
                [ -d "$version" ] || continue
                if [ $kind = tables ] && grep -q '"features"' "$version/config.json" 2> /dev/null; then
                    continue
                fi
                name=$(basename "$(dirname "$version")")
                mkdir -p "$MODELS/$name"
                mv "$version" "$MODELS/$name/$hour"
                link_unchanged "$name" "$hour"
            done
        done
        rm -r "$folder"
    done
fi

newest=$(for model in "$MODELS"/*/; do [ ! -d "$model" ] || hours_in "$model"; done | sort -rn | head -n 1)
hour=${HOUR:-$newest}
names=
for model in "$MODELS"/*/; do
    [ -z "$hour" ] || [ ! -d "$model$hour" ] || names="$names $(basename "$model")"
done
if [ -z "$names" ]; then
    echo "hour '$hour' is in no model of $MODELS" >&2
    exit 1
fi

# A server that starts later serves the newest good hour, or the one to which one went back.
policy='{"latest": 1}'
[ "$hour" = "$newest" ] || policy="{\"specific\": [$hour]}"
for name in $names; do
    echo "{\"version_policy\": $policy}" | put "$MODELS/$name/config.json"
done
echo "$hour$names" | put "$MODELS/published"

# Removes hours that are older than the KEEP newest ones, but never one that is served.
for name in $names; do
    for old in $(hours_in "$MODELS/$name" | tail -n "+$((KEEP + 1))"); do
        [ "$old" = "$hour" ] || rm -r "${MODELS:?}/$name/$old"
    done
done
echo "published $hour:$names"
