Classic members of a managed group. "has" makes a client join and get partitions, with generation 3.

= a join is answered when its client can have partitions
m1 joins  -> waits
start m1 3 0,1  -> m1: 3 cooperative-sticky
# the client does not know its partitions before it syncs
m1 syncs 3 unwritten  -> m1 writes: acknowledges start; waits
stored  -> m1: [0,1]

= a sync is answered once the acknowledgement is stored
m1 joins  -> waits
start m1 3 0  -> m1: 3 cooperative-sticky
m1 syncs 3 unwritten  -> m1 writes: acknowledges start; waits
# other requests of the client must not release a SyncGroup
m1 interrupted
stored  -> m1: [0]
m1 pings 3  -> waits

= a sync is told to join again if ZooKeeper is slow
m1 joins  -> waits
start m1 3 0  -> m1: 3 cooperative-sticky
m1 syncs 3 unwritten  -> m1 writes: acknowledges start; waits
wait 5  -> m1: REBALANCE_IN_PROGRESS

= a join that gets no partitions is answered before the session ends
m1 joins  -> waits
wait 30  -> m1: 1 cooperative-sticky
m1 syncs 1  -> m1: []

= a late commit of the previous membership is refused
# both memberships begin with the same generation; the client lost a response, so it knows only the newer one
m1 joins  -> waits
wait 30  -> m1: 1 cooperative-sticky
m1 joins  -> waits
start m1 5 0  -> m1: 5 cooperative-sticky
m1 syncs 5 unwritten  -> m1 writes: acknowledges start; waits
m1 commits 1 7 unwritten  -> m1: ILLEGAL_GENERATION
stored  -> m1: [0]
m1 commits 5 7  -> m1 writes: 0=7; m1: ok

= a join is answered at once if the target assigns its client nothing
target m2=0,1
# the first target does not name the member
m1 joins  -> waits
target m1= m2=0,1  -> m1: 1 cooperative-sticky

= a join is held until the whole share is available
target m1=0,1
m1 joins  -> waits
# the other partition is not available yet
start m1 3 0  -> m1 writes: acknowledges start
stored
start m1 3 1  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1 writes: acknowledges start; m1: [0,1]

= available partitions do not wait long for the rest of the share
target m1=0,1
m1 joins  -> waits
start m1 3 0  -> m1 writes: acknowledges start
wait 1  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1: [0]
start m1 3 1
m1 pings 3  -> m1: REBALANCE_IN_PROGRESS
target m1=0,1
m1 joins owned=0  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1 writes: acknowledges start; m1: [0,1]

= an eager member waits briefly for the partitions that replace its own
has m1 0,1 range
target m1=0,2
stop m1 4 1
m1 pings 3  -> m1: REBALANCE_IN_PROGRESS
m1 joins assignor=range  -> m1 writes: acknowledges stop; waits
stored
start m1 4 2  -> m1: 4 range
m1 syncs 4  -> m1 writes: acknowledges start; m1: [0,2]

= the heartbeats of a client that gave one up are no longer held
has m1 0
m1 pings 3  -> waits
wait 5
m1 gone by-client
m1 pings 3  -> m1: ok
wait 3
m1 pings 3  -> m1: ok
m1 joins owned=0  -> waits
start m1 4 1  -> m1: 4 cooperative-sticky
m1 syncs 4  -> m1 writes: acknowledges start; m1: [0,1]
# a rebalance does not make it wait longer
m1 pings 4  -> m1: ok

= a client that gave up its join is told to join again
has m1 0
m1 joins owned=0  -> waits
m1 gone by-client
m1 pings 3  -> m1: REBALANCE_IN_PROGRESS

= a member whose share does not change keeps its generation
has m1 0
m2 joins  -> waits
start m2 4 1  -> m2: 4 cooperative-sticky
m1 pings 3  -> waits
m1 commits 3 7  -> m1 writes: 0=7; m1: ok

= a cooperative member gives up partitions and keeps the others
has m1 0,1
m1 pings 3  -> waits
stop m1 4 1  -> m1: REBALANCE_IN_PROGRESS
# the client still owns the partition
m1 joins owned=0,1  -> m1: 3 cooperative-sticky
m1 commits 3 7 partition=1  -> m1 writes: 1=7; m1: ok
m1 syncs 3  -> m1: [0]
m1 pings 3  -> m1: REBALANCE_IN_PROGRESS
target m1=0
m1 joins owned=0  -> m1 writes: acknowledges stop; m1: 4 cooperative-sticky
stored
m1 syncs 4  -> m1: [0]
m1 pings 4  -> waits
# no other member has owned the partition since then
m1 commits 3 8  -> m1 writes: 0=8; m1: ok
m1 commits 4 8 partition=1  -> m1: REBALANCE_IN_PROGRESS

= a commit for a topic that was made anew is refused until the client has the new assignment
has m1 0,1
ids flights=another-id
ledger flights=flights-id
stop m1 4 0,1
m1 commits 3 500  -> m1: REBALANCE_IN_PROGRESS
m1 joins owned=0,1  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1: []
m1 pings 3  -> m1: REBALANCE_IN_PROGRESS
m1 joins  -> m1 writes: acknowledges stop; waits
m1 commits 3 500 unwritten  -> m1: REBALANCE_IN_PROGRESS
stored
ledger flights=another-id
start m1 5 0,1  -> m1: 5 cooperative-sticky
m1 syncs 5  -> m1 writes: acknowledges start; m1: [0,1]
m1 commits 3 500  -> m1: ILLEGAL_GENERATION
m1 commits 5 3  -> m1 writes: 0=3; m1: ok

= a commit for a topic that was deleted first is refused until the client has the new assignment
has m1 0,1
ids flights=
ledger flights=flights-id
stop m1 4 0,1
m1 commits 3 500  -> m1: REBALANCE_IN_PROGRESS
m1 joins owned=0,1  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1: []
m1 joins  -> m1 writes: acknowledges stop; waits
m1 commits 3 500 unwritten  -> m1: REBALANCE_IN_PROGRESS
stored
ledger flights=another-id
start m1 5 0,1  -> m1: 5 cooperative-sticky
m1 syncs 5  -> m1 writes: acknowledges start; m1: [0,1]
m1 commits 3 500  -> m1: ILLEGAL_GENERATION
m1 commits 5 3  -> m1 writes: 0=3; m1: ok

= a late commit from before a partition was given again is refused
# the client keeps another partition, so its earlier generations are valid for that one
has m1 0,1
stop m1 4 0
m1 joins owned=0,1  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1: [1]
target m1=0,1
m1 joins owned=1  -> m1 writes: acknowledges stop; waits
stored
start m1 5 0  -> m1: 5 cooperative-sticky
m1 syncs 5  -> m1 writes: acknowledges start; m1: [0,1]
m1 commits 3 500  -> m1: REBALANCE_IN_PROGRESS
m1 commits 3 500 partition=1  -> m1 writes: 1=500; m1: ok

= a client commits what it is given between its join and its sync
# the response to its SyncGroup contains a partition of a newer generation than that to its JoinGroup
has m1 0
target m1=0
m1 joins owned=0  -> m1: 3 cooperative-sticky
start m1 5 1
# it does not know of it yet
m1 commits 3 7 partition=1  -> m1: REBALANCE_IN_PROGRESS
m1 syncs 3  -> m1 writes: acknowledges start; m1: [0,1]
m1 commits 3 7 partition=1  -> m1 writes: 1=7; m1: ok

= an eager member owns nothing when it joins, and gets its whole share
has m1 0,1 range
stop m1 4 1
m1 pings 3  -> m1: REBALANCE_IN_PROGRESS
# the client has not stopped the partition yet
m1 commits 3 7 partition=1  -> m1 writes: 1=7; m1: ok
target m1=0
m1 joins assignor=range  -> m1 writes: acknowledges stop; m1: 4 range
stored
m1 syncs 4  -> m1: [0]
m1 commits 3 8  -> m1: ILLEGAL_GENERATION
m1 commits 4 8  -> m1 writes: 0=8; m1: ok

= commits of an eager member between its join and its sync are refused
# librdkafka repeats a commit that was refused, perhaps after it has sent a newer one
has m1 0,1 range
m1 commits 3 8  -> m1 writes: 0=8; m1: ok
m1 joins assignor=range  -> waits
m1 commits 3 7  -> m1: REBALANCE_IN_PROGRESS
wait 1  -> m1: 3 range
m1 commits 3 7  -> m1: REBALANCE_IN_PROGRESS
m1 syncs 3  -> m1: [0,1]
m1 commits 3 9  -> m1 writes: 0=9; m1: ok

= a member that gains partitions joins again
has m1 0
m1 pings 3  -> waits
start m1 4 1  -> m1: REBALANCE_IN_PROGRESS
# it is not started yet
m1 commits 3 7 partition=1  -> m1: REBALANCE_IN_PROGRESS
m1 joins owned=0  -> m1: 4 cooperative-sticky
m1 syncs 4  -> m1 writes: acknowledges start; m1: [0,1]
m1 commits 4 7 partition=1  -> m1 writes: 1=7; m1: ok

= a repeated join replaces one whose subscription is being written
has m1 0
m1 joins owned=0 topics=fares,flights  -> m1 writes: subscribes topics fares, flights; waits
target m1=0
m1 joins owned=0 topics=fares,flights  -> m1: 3 cooperative-sticky
m1 syncs 3 unwritten  -> m1: [0]
stored  -> m1: REBALANCE_IN_PROGRESS
m1 pings 3  -> waits

= a stop command during a held join is acknowledged at once
has m1 0,1
m1 joins topics=fares  -> m1 writes: subscribes topics fares; waits
stored
# the member may get more partitions
stop m1 4 0,1  -> m1 writes: acknowledges stop
stored
start m1 4 2  -> m1: 4 cooperative-sticky

= a held heartbeat is answered at the client's next request or at its limit
has m1 0
m1 pings 3 kgo  -> waits
m1 interrupted  -> m1: ok
m1 pings 3  -> waits
wait 15  -> m1: ok

= librdkafka sends its heartbeat again after a commit
# the answer to that heartbeat must not make the client give up a newer membership
has m1 0
m1 pings 3 librdkafka  -> waits
wait 1
m1 interrupted  -> m1: COORDINATOR_LOAD_IN_PROGRESS
target m1=0
start m1 4 1
target m1=0,1
m1 joins owned=0  -> m1: 4 cooperative-sticky
m1 syncs 4  -> m1 writes: acknowledges start; m1: [0,1]
m1 pings 3 librdkafka  -> m1: ok
m1 leaves  -> m1 writes: leaves (left); waits
stored  -> m1: ok
m1 pings 4 librdkafka  -> m1: ok
wait 2
m1 pings 4 librdkafka  -> m1: UNKNOWN_MEMBER_ID

= requests with a wrong generation or member are refused
has m1 0
m1 pings 4  -> m1: ILLEGAL_GENERATION
m1 syncs 4  -> m1: ILLEGAL_GENERATION
m1 commits 4 7  -> m1: ILLEGAL_GENERATION
m2 pings 3  -> m2: UNKNOWN_MEMBER_ID
m2 syncs 3  -> m2: UNKNOWN_MEMBER_ID
m2 leaves  -> m2: UNKNOWN_MEMBER_ID
# another member may own these partitions
m2 joins owned=0  -> m2: UNKNOWN_MEMBER_ID

= a silent member is expired
has m1 0
wait 46  -> m1 writes: leaves (expired after 45 s)
stored
m1 pings 3  -> m1: UNKNOWN_MEMBER_ID

= a member leaves
has m1 0
m1 leaves  -> m1 writes: leaves (left); waits
stored  -> m1: ok

= a static client that returns replaces its former process
has m1 0 instance=i1
m1 pings 3 instance=i1  -> waits
m2 joins new instance=i1  -> m1: FENCED_INSTANCE_ID; i1 writes: leaves (replaced); waits
# the partitions must be kept
stored
start i1 3 0  -> m2: 3 cooperative-sticky
m2 syncs 3 instance=i1  -> i1 writes: acknowledges start; m2: [0]
m1 pings 3 instance=i1  -> m1: FENCED_INSTANCE_ID
m1 joins instance=i1  -> m1: FENCED_INSTANCE_ID
m1 syncs 3 instance=i1  -> m1: FENCED_INSTANCE_ID
# an operator removes it
'' leaves instance=i1  -> i1 writes: leaves for good (left); waits
stored  -> an operator: ok

= as in Kafka, only who names the instance id of a static member is fenced
has m1 0
m2 joins new instance=i1  -> waits
m1 pings 3 instance=i1  -> m1: FENCED_INSTANCE_ID
m1 commits 3 7 instance=i1  -> m1: FENCED_INSTANCE_ID
m1 pings 3 instance=nobody  -> m1: UNKNOWN_MEMBER_ID
m1 commits 3 7 instance=nobody  -> m1: UNKNOWN_MEMBER_ID
i1 pings 3  -> i1: UNKNOWN_MEMBER_ID
m3 pings 3 instance=m1  -> m3: UNKNOWN_MEMBER_ID
'' pings 3 instance=i1  -> an operator: FENCED_INSTANCE_ID

= a member of an earlier term keeps its partitions
earlier m1 protocol=classic
m1 commits 5 70  -> m1: COORDINATOR_LOAD_IN_PROGRESS
m1 pings 5  -> waits
# the previous term may have answered only with errors
m1 interrupted  -> m1: ok
m1 commits 5 70  -> m1 writes: 0=70; m1: ok
stop m1 6 1
m1 pings 5  -> m1: REBALANCE_IN_PROGRESS
# the new term knew no subscription
m1 joins owned=0,1  -> m1 writes: subscribes topics flights; waits
stored  -> m1: 5 cooperative-sticky
m1 syncs 5  -> m1: [0]

= a client whose join was in an earlier term joins again
earlier m1 protocol=classic
m1 syncs 5  -> m1: REBALANCE_IN_PROGRESS
target m1=0,1
m1 joins owned=0,1  -> m1 writes: subscribes topics flights; waits
stored
target m1=0,1  -> m1: 5 cooperative-sticky
m1 syncs 5  -> m1: [0,1]

= a static client replaces its former process of an earlier term
earlier i1 key=m1 protocol=classic
m2 joins new instance=i1  -> i1 writes: leaves (replaced); waits
stored
start i1 6 0,1  -> m2: 6 cooperative-sticky

= a client of the other protocol is unknown
earlier m1
m1 pings 5  -> m1: UNKNOWN_MEMBER_ID
m1 commits 5 70  -> m1: COORDINATOR_LOAD_IN_PROGRESS

= waiting requests are answered NOT_COORDINATOR when the term ends
m1 joins  -> waits
term ends  -> m1: NOT_COORDINATOR

= a cooperative client that drops partitions that its broker does not know yet gets them again
# librdkafka drops them, leaves the group's generation as it is, and tells nobody unless it is the leader
m1 joins  -> waits
target m1=0
start m1 3 0 later  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1 writes: acknowledges start; m1: [0]
m1 pings 3 librdkafka  -> waits
wait 5  -> m1: ok
m1 pings 3 librdkafka  -> m1: REBALANCE_IN_PROGRESS
# nobody else is disturbed
m1 joins  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1: [0]
m1 pings 3 librdkafka  -> waits
wait 25  -> m1: ok
m1 pings 3 librdkafka  -> m1: REBALANCE_IN_PROGRESS
m1 joins  -> m1: 3 cooperative-sticky
m1 syncs 3  -> m1: [0]
suspended 3600
m1 pings 3 librdkafka  -> m1: ok

= an eager client does not join again
m1 joins assignor=range  -> waits
target m1=0
start m1 3 0 later  -> m1: 3 range
m1 syncs 3  -> m1 writes: acknowledges start; m1: [0]
m1 pings 3 librdkafka  -> waits
wait 5
m1 pings 3 librdkafka  -> m1: ok
wait 25  -> m1: ok
m1 pings 3 librdkafka  -> m1: ok
