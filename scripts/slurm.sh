#!/usr/bin/env bash
# A SLURM cluster on one machine: its nodes are the hosts of scripts/hosts.sh, for trying jobs only.
#
#   scripts/slurm.sh up 2 FOLDER       makes two hosts with slurmd, and slurmctld here
#   scripts/slurm.sh down FOLDER       ends it, and removes the hosts
#
# SLURM_CONF=FOLDER/slurm.conf leads sbatch and squeue there; run them on a host, which knows the
# nodes' names: scripts/hosts.sh exec 1 ... Needs root, and apt-get install slurmctld slurmd
# slurm-client. It asks for no password: it trusts anyone who reaches it.
set -euo pipefail

HOSTS=$(dirname "$0")/hosts.sh

up() {
    local count=$1 folder
    folder=$(mkdir -p "$2" && cd "$2" && pwd)
    "$HOSTS" up "$count"
    cat >"$folder/slurm.conf" <<END
ClusterName=forge
SlurmctldHost=$(hostname -s)(10.77.0.254)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
KillWait=5
StateSaveLocation=$folder
SlurmdSpoolDir=$folder/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/%n.log
$(for number in $(seq "$count"); do
    echo "NodeName=forge-host$number NodeAddr=10.77.0.$number CPUs=1"
done)
PartitionName=all Nodes=ALL Default=YES State=UP
END
    echo "CgroupPlugin=cgroup/v1" >"$folder/cgroup.conf" # asks for no cgroup where none is used
    export SLURM_CONF=$folder/slurm.conf
    slurmctld
    for number in $(seq "$count"); do "$HOSTS" exec "$number" slurmd; done
}

down() {
    if [ -f "$1/slurmctld.pid" ]; then kill -9 "$(cat "$1/slurmctld.pid")" || true; fi
    "$HOSTS" down
}

case "${1:-}" in
    up) up "$2" "$3" ;;
    down) down "$2" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
