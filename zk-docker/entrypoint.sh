#!/bin/bash
# Makes zoo.cfg from the environment and becomes the server, so that it is process 1 and gets the container's signals.
#   zookeeper-entrypoint serve          (default) the server
#   zookeeper-entrypoint health         exit 0 if this server answers and serves clients, for the image's HEALTHCHECK
#   zookeeper-entrypoint cli [args]     ZooKeeper's own shell, against this server unless args say -server
#   zookeeper-entrypoint config         prints the zoo.cfg it would use
set -euo pipefail

CLASS_PATH=/conf:/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-log4j12.jar:/usr/share/java/log4j-1.2.jar

die() {
    echo "zookeeper-entrypoint: $*" >&2
    exit 64
}

# number NAME DEFAULT: the variable's value if it is a whole number, the default if it is unset.
number() {
    local value=${!1:-$2}
    [[ $value =~ ^-?[0-9]+$ ]] || die "$1=$value is not a whole number"
    echo "$value"
}

one_of() { # NAME DEFAULT VALUE...
    local name=$1 value=${!1:-$2} allowed
    shift 2
    for allowed in "$@"; do if [ "$value" = "$allowed" ]; then echo "$value" && return; fi; done
    die "$name=$value is none of: $*"
}

zoo_cfg() {
    local server
    # Each value is read before the here-document: a command substitution that fails inside one would go unnoticed.
    local port tick init sync cnxns min_session max_session retain purge standalone admin
    port=$(number ZOO_CLIENT_PORT 2181)
    tick=$(number ZOO_TICK_TIME 2000)
    init=$(number ZOO_INIT_LIMIT 10)
    sync=$(number ZOO_SYNC_LIMIT 5)
    cnxns=$(number ZOO_MAX_CLIENT_CNXNS 0)
    min_session=$(number ZOO_MIN_SESSION_TIMEOUT $((2 * tick)))
    max_session=$(number ZOO_MAX_SESSION_TIMEOUT $((20 * tick)))
    retain=$(number ZOO_AUTOPURGE_SNAP_RETAIN_COUNT 3)
    purge=$(number ZOO_AUTOPURGE_PURGE_INTERVAL 24)
    standalone=$(one_of ZOO_STANDALONE_ENABLED true true false)
    admin=$(one_of ZOO_ADMINSERVER_ENABLED false true false)
    ((min_session <= max_session)) || die "ZOO_MIN_SESSION_TIMEOUT=$min_session is above ZOO_MAX_SESSION_TIMEOUT=$max_session"
    cat <<CFG
dataDir=/data
dataLogDir=/datalog
tickTime=$tick
initLimit=$init
syncLimit=$sync
maxClientCnxns=$cnxns
minSessionTimeout=$min_session
maxSessionTimeout=$max_session
autopurge.snapRetainCount=$retain
autopurge.purgeInterval=$purge
standaloneEnabled=$standalone
admin.enableServer=$admin
4lw.commands.whitelist=${ZOO_4LW_COMMANDS_WHITELIST:-srvr,stat,ruok,mntr,conf,cons,isro}
CFG
    if [ -n "${ZOO_SERVERS:-}" ]; then
        # A container's own name may resolve to an address it does not listen on yet (compose, published ports).
        echo 'quorumListenOnAllIPs=true'
        for server in $ZOO_SERVERS; do
            [[ $server =~ ^server\.[0-9]+=[^:]+:[0-9]+:[0-9]+(:(participant|observer))?(\;[0-9.:]+)?$ ]] ||
                die "ZOO_SERVERS has $server, which is not server.ID=HOST:FOLLOWER_PORT:ELECTION_PORT;CLIENT_PORT"
            [[ $server == *\;* ]] || server="$server;$port"
            echo "$server"
        done
    else
        echo "clientPort=$port"
    fi
    # shellcheck disable=SC2086 # one setting a word, one a line
    if [ -n "${ZOO_CFG_EXTRA:-}" ]; then printf '%s\n' $ZOO_CFG_EXTRA; fi
}

my_id() {
    local id
    id=$(number ZOO_MY_ID 1)
    ((id >= 1 && id <= 255)) || die "ZOO_MY_ID=$id is not from 1 to 255"
    if [ -n "${ZOO_SERVERS:-}" ] && [[ " $ZOO_SERVERS" != *" server.$id="* ]]; then
        die "ZOO_MY_ID=$id, but ZOO_SERVERS names no server.$id: $ZOO_SERVERS"
    fi
    echo "$id"
}

# ask WORD: what the server answers to a four-letter word; bash's own sockets, so the image needs no netcat.
ask() {
    exec 3<>"/dev/tcp/127.0.0.1/$(number ZOO_CLIENT_PORT 2181)"
    printf '%s' "$1" >&3
    cat <&3
}

serve() {
    local id
    id=$(my_id)
    zoo_cfg >/conf/zoo.cfg
    echo "$id" >/data/myid
    # Debian's ZooKeeper logs through log4j 1.2; a container's log is its standard output.
    cat >/conf/log4j.properties <<LOG
log4j.rootLogger=${ZOO_LOG_LEVEL:-INFO}, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} [myid:$id] %-5p [%t:%c{1}@%L] - %m%n
LOG
    # Names of the others must not be remembered: one that starts later has none yet (Java keeps that answer for 10 s, in
    # which an election that needs it fails), one that returns may have another address. Only a security property can say
    # so: java.security sets one, and that goes before -Dsun.net.inetaddr.negative.ttl.
    printf 'networkaddress.cache.ttl=1\nnetworkaddress.cache.negative.ttl=0\n' >/conf/java.security
    # shellcheck disable=SC2086 # words of options
    exec java -Djava.security.properties=/conf/java.security -Dzookeeper.jmx.log4j.disable=true \
        ${ZOO_JVM_FLAGS:--Xmx512m -XX:+UseSerialGC} -cp "$CLASS_PATH" \
        org.apache.zookeeper.server.quorum.QuorumPeerMain /conf/zoo.cfg
}

command=${1:-serve}
shift || true
case $command in
serve) serve ;;
config) zoo_cfg ;;
health) [[ $(ask srvr) == *'Mode: '* ]] ;;
cli)
    [[ " $* " == *' -server '* ]] || set -- -server "127.0.0.1:$(number ZOO_CLIENT_PORT 2181)" "$@"
    exec java -cp /usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar org.apache.zookeeper.ZooKeeperMain "$@"
    ;;
*) exec "$command" "$@" ;;
esac
