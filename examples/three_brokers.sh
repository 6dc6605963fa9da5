#!/bin/sh
# Three brokers from files of their own with `tidelog server`; the first one is the controller, too.
# What `tidelog up --brokers 3` does, by hand:  sh examples/three_brokers.sh /tmp/three
# Other ports than 9092 to 9094 and 9095 (the controller's): PORTS="19092 19093 19094 19095".
# Each prints a line when it is ready, or says why not in its log. Ctrl-C stops all three.
set -eu
folder=${1:?which folder?}
tidelog=${TIDELOG:-tidelog}
command -v "${tidelog%% *}" >/dev/null || {
    echo "$tidelog is not on the PATH: set TIDELOG, such as TIDELOG=.venv/bin/tidelog" >&2
    exit 1
}
set -- ${PORTS:-9092 9093 9094 9095}
controller=$4

mkdir -p "$folder"
# The same secret for all, readable for nobody else.
if [ ! -e "$folder/cluster.secret" ]; then
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$folder/cluster.secret")
fi

processes=
trap 'kill $processes 2>/dev/null; wait' EXIT
trap 'exit 0' INT TERM
for id in 1 2 3; do
    cat >"$folder/broker-$id.properties" <<END
node.id=$id
process.roles=$([ $id = 1 ] && echo broker,controller || echo broker)
listeners=PLAINTEXT://127.0.0.1:$1$([ $id = 1 ] && echo ",CONTROLLER://127.0.0.1:$controller")
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:$controller
cluster.secret.file=$folder/cluster.secret
log.dirs=$folder/broker-$id
default.replication.factor=3
min.insync.replicas=2
END
    $tidelog server "$folder/broker-$id.properties" 2>"$folder/broker-$id.log" &
    processes="$processes $!"
    shift
done
# A broker that ends by itself has said why in its log.
id=0
for process in $processes; do
    id=$((id + 1))
    wait "$process" || echo "broker $id ended: see $folder/broker-$id.log" >&2
done
exit 1
