#!/bin/sh
# A tour of the commands: a topic, some records, a group, its offsets.
# Run a server first (`tidelog up`), then: sh examples/commands.sh 127.0.0.1:9092
set -eu
server="--bootstrap-server ${1:-127.0.0.1:9092}"
tidelog=${TIDELOG:-tidelog}
topic="tour-$$"

$tidelog topics $server --create --topic "$topic" --partitions 2
printf 'N14228=EWR-IAH\nN24211=LGA-IAH\nN14228=EWR-ORD\n' |
    $tidelog produce $server --topic "$topic" --property parse.key=true --property key.separator==
$tidelog consume $server --topic "$topic" --group "$topic" --from-beginning --max-messages 3 \
    --property print.key=true
$tidelog groups $server --describe --group "$topic"
$tidelog groups $server --reset-offsets --group "$topic" --topic "$topic" --to-earliest --execute
$tidelog configs $server --alter --topic "$topic" --add-config cleanup.policy=compact
$tidelog topics $server --describe --topic "$topic"
$tidelog groups $server --delete --group "$topic"
$tidelog topics $server --delete --topic "$topic"
