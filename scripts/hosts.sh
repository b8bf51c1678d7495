#!/usr/bin/env bash
# Hosts on one machine: network namespaces with links of their own, to try a run over several hosts.
#
#   scripts/hosts.sh up 2              makes forge-host1 (10.77.0.1) and forge-host2 (10.77.0.2)
#   scripts/hosts.sh exec 1 COMMAND    runs a command on host 1
#   scripts/hosts.sh cut 2             cuts host 2 off; join 2 brings it back
#   scripts/hosts.sh down              removes all of them, with what still runs there
#
# This machine is 10.77.0.254 to them. Needs root (CAP_NET_ADMIN, CAP_SYS_ADMIN).
set -euo pipefail

BRIDGE=forge-br0
NETWORK=10.77.0

up() {
    local count=$1 number
    ip link add "$BRIDGE" type bridge
    ip address add "$NETWORK.254/24" dev "$BRIDGE"
    ip link set "$BRIDGE" up
    for number in $(seq "$count"); do
        ip netns add "forge-host$number"
        ip link add "forge-veth$number" type veth peer name eth0 netns "forge-host$number"
        ip link set "forge-veth$number" master "$BRIDGE" up
        ip -n "forge-host$number" address add "$NETWORK.$number/24" dev eth0
        ip -n "forge-host$number" link set eth0 up
        ip -n "forge-host$number" link set lo up
    done
}

down() {
    local name
    for name in $(ip netns list | awk '/^forge-host/ {print $1}'); do
        ip netns pids "$name" | xargs --no-run-if-empty kill -9
        ip netns delete "$name"
    done
    if ip link show "$BRIDGE" >/dev/null 2>&1; then ip link delete "$BRIDGE"; fi
}

case "${1:-}" in
    up) up "$2" ;;
    down) down ;;
    exec) exec ip netns exec "forge-host$2" "${@:3}" ;;
    cut) ip link set "forge-veth$2" down ;;
    join) ip link set "forge-veth$2" up ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
