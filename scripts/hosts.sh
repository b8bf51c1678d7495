#!/usr/bin/env bash
# Hosts on one machine: network namespaces with links of their own, to try a run over several hosts.
#
#   scripts/hosts.sh up 2              makes forge-host1 (10.77.0.1) and forge-host2 (10.77.0.2)
#   scripts/hosts.sh exec 1 COMMAND    runs a command on host 1
#   scripts/hosts.sh cut 2             cuts host 2 off; join 2 brings it back
#   scripts/hosts.sh down              removes all of them, with what still runs there
#
# This machine is 10.77.0.254 to them. They know each other by name, and share its files and its
# process ids. Needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN).
set -euo pipefail

BRIDGE=forge-br0
NETWORK=10.77.0

up() {
    local count=$1 number host names="127.0.0.1 localhost"
    if ip link show "$BRIDGE" >/dev/null 2>&1; then
        echo "there are hosts already; scripts/hosts.sh down removes them" >&2
        exit 3
    fi
    trap down ERR # leaves nothing half made
    ip link add "$BRIDGE" type bridge
    ip address add "$NETWORK.254/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
    for number in $(seq "$count"); do
        names+=$'\n'"$NETWORK.$number forge-host$number"
    done
    for number in $(seq "$count"); do
        host=forge-host$number
        ip netns add "$host"
        ip link add "forge-veth$number" type veth peer name eth0 netns "$host"
        ip link set "forge-veth$number" master "$BRIDGE" up
        ip -n "$host" address add "$NETWORK.$number/24" dev eth0
        ip -n "$host" link set eth0 up
        ip -n "$host" link set lo up
        # ip netns exec lays this over /etc/hosts.
        mkdir -p "/etc/netns/$host"
        echo "$names" >"/etc/netns/$host/hosts"
    done
}

down() {
    local host link
    # A network's links outlive it until its last process is gone.
    for link in $(ip -brief link show type veth | awk -F '[@ ]' '/^forge-veth/ {print $1}'); do
        ip link delete "$link"
    done
    for host in $(ip netns list | awk '/^forge-host/ {print $1}'); do
        ip netns pids "$host" | xargs --no-run-if-empty kill -9
        ip netns delete "$host"
        rm -rf "/etc/netns/$host"
    done
    if ip link show "$BRIDGE" >/dev/null 2>&1; then ip link delete "$BRIDGE"; fi
}

run_on() {
    exec ip netns exec "$1" unshare --uts sh -c 'hostname "$0" && exec "$@"' "$@"
}

case "${1:-}" in
    up) up "$2" ;;
    down) down ;;
    exec) run_on "forge-host$2" "${@:3}" ;;
    cut) ip link set "forge-veth$2" down ;;
    join) ip link set "forge-veth$2" up ;;
    *) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
