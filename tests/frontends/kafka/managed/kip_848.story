KIP-848 members of a managed group. "holds" makes a client join and own partitions, with epoch 3. An answer to a
heartbeat is the epoch, the assignment if the client does not know it, and when the next one is due, if not in 1 s.

= a join is answered when partitions are available
m1 beats join  -> waits
start m1 3 0,1  -> m1: 3 [0,1]
m1 beats 3 owned=  -> m1: 3 [0,1]
m1 beats 3 owned=0,1  -> m1: 3; m1 writes: acknowledges start
stored

= a heartbeat is held until there is news
holds m1 0,1 librdkafka
m1 beats 3  -> waits
stop m1 4 1  -> m1: 3 [0], next in 3.00 s
# an acknowledgement may follow this heartbeat
m1 beats 3  -> m1: 3 [0]
m1 beats 3 owned=0  -> m1 writes: acknowledges stop; waits
stored
start m1 5 2  -> m1: 5 [0,2], next in 3.00 s

= a held heartbeat ends when its client sends another request or disconnects
holds m1 0 librdkafka
m1 beats 3  -> waits
suspended 0.4
m1 interrupted by=another
m1 interrupted  -> m1: 3, next in 0.40 s
m1 beats 3  -> waits
m1 gone
stop m1 4 0
m1 beats 3  -> m1: 3 [], next in 3.00 s

= franz-go gives a held heartbeat up, and is answered at once from then on
holds m1 0 "kgo 1.18"
m1 beats 3  -> waits
wait 3
m1 gone by-client
# a client repeats all fields
m1 beats 3 whole owned=0  -> m1: 3 [0]
wait 5
m1 beats 3  -> m1: 3
wait 5
m1 beats 3  -> m1: 3

= the Java client gives a held heartbeat up
holds m1 0 java
m1 beats 3  -> waits
wait 4.5
m1 gone by-client
m1 beats 3 whole owned=0  -> m1: 3 [0]
wait 5
m1 beats 3  -> m1: 3

= librdkafka gives a held heartbeat up
holds m1 0 librdkafka
m1 beats 3  -> waits
suspended 10 wakes  -> m1: 3, next in 1.70 s
m1 beats 3  -> waits
suspended 1 wakes
m1 gone by-client
m1 beats 3 whole owned=0  -> m1: 3 [0]
wait 5
m1 beats 3  -> m1: 3

= a client that asks on another connection has given the held heartbeat up
holds m1 0 "kgo 1.18"
m1 beats 3  -> waits
wait 3
m1 beats 3 whole owned=0  -> m1: 3 [0]
wait 5  -> m1: 3
m1 beats 3  -> m1: 3

= the Java client asks on another connection
holds m1 0 java
m1 beats 3  -> waits
wait 4.5
m1 beats 3 whole owned=0  -> m1: 3 [0]
wait 5  -> m1: 3
m1 beats 3  -> m1: 3

= librdkafka asks on another connection
holds m1 0 librdkafka
m1 beats 3  -> waits
suspended 10 wakes  -> m1: 3, next in 1.70 s
m1 beats 3  -> waits
suspended 1 wakes
m1 beats 3 whole owned=0  -> m1: 3 [0]
wait 5  -> m1: 3
m1 beats 3  -> m1: 3

= heartbeats are held again after this instance closed the connection or was late
holds m1 0 java
m1 beats 3  -> waits
m1 gone late=0.5
m1 beats 3  -> waits
suspended 30
m1 gone by-client
m1 beats 3  -> waits

= librdkafka's heartbeats are held again after this instance closed the connection or was late
holds m1 0 librdkafka
m1 beats 3  -> waits
m1 gone late=0.5
m1 beats 3  -> waits
suspended 30
m1 gone by-client
m1 beats 3  -> waits

= franz-go's heartbeats are held again after this instance closed the connection or was late
holds m1 0 "kgo 1.18"
m1 beats 3  -> waits
m1 gone late=0.5
m1 beats 3  -> waits
suspended 30
m1 gone by-client
m1 beats 3  -> waits

= the join of a client that gave its first one up is answered soon
m1 beats join software="kgo 1.18"  -> waits
wait 3
m1 gone by-client
m1 beats join software="kgo 1.18"  -> waits
wait 1  -> m1: 1 []

= a joining Java client gets its whole share in one answer
m1 beats join software=java  -> waits
target m1=0,1,2
start m1 3 0  -> m1 writes: acknowledges start
# the next part can only follow the acknowledgement of this one
stored
start m1 3 1,2  -> m1: 3 [0,1,2], next in 5.00 s

= a joining Java client does not wait long for the rest of its share
m1 beats join software=java  -> waits
start m1 3 0  -> m1 writes: acknowledges start
stored
wait 1  -> m1: 3 [0], next in 5.00 s
start m1 3 1
m1 beats 3 owned=0  -> m1: 3 [0,1], next in 5.00 s

= a Java client that is a member gets each part of its share at once
holds m1 0 java
m1 beats 3  -> waits
target m1=0,1,2
start m1 4 1  -> m1: 4 [0,1], next in 5.00 s

= a client that sends all fields without being asked gets its assignment
# it may still be carrying out an earlier one, although it owns the partitions of the newest
holds m1 0 java
m1 beats 3 whole owned=0  -> m1: 3 [0], next in 5.00 s

= librdkafka that sends all fields without being asked gets its assignment
holds m1 0 librdkafka
m1 beats 3 whole owned=0  -> m1: 3 [0], next in 0.15 s

= a Java client whose hold is interrupted early is asked to repeat the heartbeat
holds m1 0 java
m1 beats 3  -> waits
m1 interrupted  -> m1: COORDINATOR_LOAD_IN_PROGRESS
# the client already knows its assignment
m1 beats 3 whole owned=0  -> waits
start m1 4 1  -> m1: 4 [0,1], next in 5.00 s
# the answer may have been lost
m1 beats 3 whole owned=0  -> m1: 4 [0,1], next in 5.00 s

= a repeated join counts as a sign of life, and replaces the one that is held
m1 beats join  -> waits
m1 beats join  -> m1: COORDINATOR_LOAD_IN_PROGRESS; waits
wait 40  -> m1: 1 []
m1 beats join  -> waits
wait 40  -> m1: 1 []
m1 beats join  -> waits

= a join that gets no partitions is answered at its limit
m1 beats join  -> waits
wait 0.89
wait 0.01  -> m1: 1 []

= a stop is acknowledged when the client no longer owns the partitions
holds m1 0,1
stop m1 4 1
m1 beats 3  -> m1: 3 [0]
m1 beats 3 owned=0,1  -> m1: 3 [0]
m1 beats 3 owned=0  -> m1: 4; m1 writes: acknowledges stop
stored
# the answer with the new epoch may be lost
m1 beats 3  -> m1: 4

= a stop is not acknowledged before the client has received it
holds m1 0
stop m1 4 0
m1 beats 3 owned=  -> m1: 3 []
m1 beats 3 owned=  -> m1: 4; m1 writes: acknowledges stop

= a client has not stopped partitions of a recreated topic while it owns the old ones
holds m1 0,1
ids flights=another-id
stop m1 4 0,1
m1 beats 3  -> m1: 3 []
m1 beats 3 owned=0  -> m1: 3 []
m1 beats 3 owned=  -> m1: 4; m1 writes: acknowledges stop
stored
start m1 5 0
m1 beats 4  -> m1: 5 [0] as another-id 0

= a start is acknowledged without the partitions of a deleted topic
ids fares=fares-id
m1 beats join  -> waits
start m1 3 0,fares-0  -> m1: 3 [fares-0,0]
m1 beats 3 owned=0  -> m1: 3 [fares-0,0]
doubtful  -> fares; flights
ids fares=another-id
m1 beats 3  -> m1: 3; m1 writes: acknowledges start

= the topic ids in a member's ledger are used even if the topic was recreated
m1 beats join  -> waits
ledger flights=earlier-id
start m1 3 0  -> m1: 3 [0] as earlier-id 0

= a term tells which members it has heard and what is left of the others' sessions
earlier m1 m2
wait 10
m1 beats 5  -> m1: 5 [0,1]
heard  -> m1 heard; m2 35000 ms

= a member that ends while it resumes is unknown
earlier m1
m1 beats 5 unread owned=0,1  -> waits
deleted m1  -> m1: UNKNOWN_MEMBER_ID

= requests with a wrong epoch or member are refused
holds m1 0
m1 beats 4  -> m1: FENCED_MEMBER_EPOCH
m2 beats 3  -> m2: UNKNOWN_MEMBER_ID
m1 commits 4 7  -> m1: STALE_MEMBER_EPOCH
m2 commits 3 7  -> m2: UNKNOWN_MEMBER_ID
m1 commits 3 7 partition=9  -> m1: STALE_MEMBER_EPOCH

= the previous epoch is accepted only from a client that may have lost the newest
holds m1 0,1,2
start m1 4 3
m1 beats 3 owned=0,1,2  -> m1: 4 [0,1,2,3]
m1 beats 4 owned=0,1,2,3  -> m1: 4; m1 writes: acknowledges start
# the client may have lost the newer answer
m1 beats 3 owned=0,1,2  -> m1: 4
# it was never given partition 7
m1 beats 3 owned=0,1,2,7  -> m1: FENCED_MEMBER_EPOCH
m1 beats 2 owned=0,1,2  -> m1: FENCED_MEMBER_EPOCH

= a member with the epoch of another member is fenced
holds m1 0,1
m2 beats join  -> waits
start m2 5 2  -> m2: 5 [2]
m1 beats 5  -> m1: FENCED_MEMBER_EPOCH
m2 beats 3  -> m2: FENCED_MEMBER_EPOCH
m2 beats 5 owned=2  -> m2: 5; m2 writes: acknowledges start

= a client that claims partitions it was not given does not get them
holds m1 0,1
m1 beats 3 whole owned=0,1,2,unknown-0  -> m1: 3 [0,1]
m1 commits 3 7 partition=2  -> m1: STALE_MEMBER_EPOCH
stop m1 4 1
m1 beats 3  -> m1: 3 [0]
# a client that claims unknown partitions has not shown that it stopped any
m1 beats 3 owned=0,2  -> m1: 3 [0]
m1 beats 3 owned=0,unknown-0  -> m1: 3 [0]
m1 beats 3 owned=0  -> m1: 4; m1 writes: acknowledges stop

= a command is not acknowledged before all of it is carried out
m1 beats join  -> waits
start m1 3 0,1,2  -> m1: 3 [0,1,2]
m1 beats 3 owned=0,1  -> m1: 3 [0,1,2]
m1 beats 3 owned=0,1,2  -> m1: 3; m1 writes: acknowledges start
stored
stop m1 4 1,2
m1 beats 3  -> m1: 3 [0]
m1 beats 3 owned=0,2  -> m1: 3 [0]
m1 beats 3 owned=0  -> m1: 4; m1 writes: acknowledges stop

= an assignment whose answer was lost is told again, though the heartbeat does not say so
holds m1 0 librdkafka
m1 beats 3  -> waits
start m1 4 1  -> m1: 4 [0,1], next in 3.00 s
m1 beats 3  -> m1: 4 [0,1]

= a client that never acknowledges gets its assignment again and keeps its epoch
holds m1 0,1 librdkafka
stop m1 4 1
m1 beats 3 whole owned=0,1  -> m1: 3 [0], next in 3.00 s
m1 beats 3 whole owned=0,1  -> m1: 3 [0]

= a commit is answered once it is stored
holds m1 0
m1 commits 3 7  -> m1 writes: 0=7; m1: ok
m1 commits 3 8 unwritten  -> m1 writes: 0=8; waits
stored  -> m1: ok

= a commit that arrives late on an earlier connection does not replace a newer one
holds m1 0
m1 commits 3 10 on=2  -> m1 writes: 0=10; m1: ok
m1 commits 3 9 on=1  -> m1: COORDINATOR_NOT_AVAILABLE
m1 commits 3 11 on=2  -> m1 writes: 0=11; m1: ok

= metadata is stored with the commit, and a leader epoch when the partition is given up
holds m1 0,1
m1 commits 3 7 leader=5 metadata="gate A"  -> m1 writes: 0=7, with 0: 5 gate A; m1: ok
m1 commits 3 8 leader=5  -> m1 writes: 0=8; m1: ok
m1 commits 3 8 leader=5 partition=1  -> m1 writes: 1=8; m1: ok
leader epochs  -> 0: 5 at 8; 1: 5 at 8
stop m1 4 1
m1 beats 3  -> m1: 3 [0]
m1 beats 3 owned=0  -> m1: 4; m1 writes: acknowledges stop, with 1: 5
stored
leader epochs  -> 0: 5 at 8
m1 beats leave  -> m1 writes: leaves (left), with 0: 5; waits

= a commit without a leader epoch discards the previous leader epoch
holds m1 0
m1 commits 3 8 leader=5  -> m1 writes: 0=8; m1: ok
m1 commits 3 9  -> m1 writes: 0=9; m1: ok
leader epochs  -> none
m1 commits 3 8 leader=5  -> m1 writes: 0=8; m1: ok
m1 commits 3 9 metadata="gate A"  -> m1 writes: 0=9, with 0: -1 gate A; m1: ok
leader epochs  -> none

= a commit in a partition shows that the client has started it
m1 beats join  -> waits
start m1 3 0  -> m1: 3 [0]
# the heartbeat that acknowledges the start may come later
m1 commits 3 7  -> m1 writes: acknowledges start; m1 writes: 0=7; m1: ok
stop m1 4 0
m1 commits 3 8  -> m1 writes: 0=8; m1: ok
m1 beats 3  -> m1: 3 []
m1 beats 3 owned=  -> m1: 4; m1 writes: acknowledges stop
stored
start m1 5 1
# the client has not received the start yet
m1 commits 4 9 partition=1  -> m1: STALE_MEMBER_EPOCH
m1 beats 4  -> m1: 5 [1]
m1 commits 5 9 partition=1  -> m1 writes: acknowledges start; m1 writes: 1=9; m1: ok
# it owned no partitions in that epoch
m1 commits 4 9 partition=1  -> m1: STALE_MEMBER_EPOCH
# the client never had that epoch
m1 commits 2 9 partition=1  -> m1: STALE_MEMBER_EPOCH

= a commit for a topic that was made anew is refused until the client has the new epoch
# until the client has acknowledged the stop, its epoch is the member's, and clients repeat a refused commit before a
# revocation; the commit is stored under the earlier id, so it counts for nobody
holds m1 0,1
ids flights=another-id
stop m1 4 0
m1 commits 3 500  -> m1 writes: 0=500; m1: ok
m1 beats 3 owned=0,1  -> m1: 3 [1]
m1 beats 3 owned=1  -> m1: 4; m1 writes: acknowledges stop
stored
m1 commits 3 500  -> m1: STALE_MEMBER_EPOCH
start m1 5 0
# the position is that of the earlier topic
m1 commits 3 500  -> m1: STALE_MEMBER_EPOCH
# the client has kept this partition
m1 commits 3 500 partition=1  -> m1 writes: 1=500; m1: ok
m1 beats 4  -> m1: 5 [0,1] as another-id 0, another-id 1
m1 commits 3 500  -> m1: STALE_MEMBER_EPOCH
m1 commits 5 3  -> m1 writes: acknowledges start; m1 writes: 0=3; m1: ok

= a late commit of the previous membership is refused
# both memberships begin with the same epoch, before the client has any partitions
m1 beats join  -> waits
wait 30  -> m1: 1 []
start m1 5 0
m1 beats 1 owned=  -> m1: 5 [0]
m1 commits 1 7  -> m1: STALE_MEMBER_EPOCH
m1 commits 5 7  -> m1 writes: acknowledges start; m1 writes: 0=7; m1: ok

= a subscription changes in place
holds m1 0
m1 beats 3 regex=gat.*  -> m1 writes: subscribes topics that match 'flights|(?:gat.*)'; waits
stored  -> m1: 3
# the client keeps its partitions
m1 commits 3 7  -> m1 writes: 0=7; m1: ok
# the subscription has not changed
m1 beats 3 regex=gat.*  -> m1: 3
m1 beats 3 regex=  -> m1 writes: subscribes topics flights; waits

= a client repeats a subscription that could not be written
holds m1 0
m1 beats 3 regex=gat.*  -> m1 writes: subscribes topics that match 'flights|(?:gat.*)'; waits
stored failed  -> m1: COORDINATOR_NOT_AVAILABLE
m1 beats 3 whole regex=gat.*  -> m1 writes: subscribes topics that match 'flights|(?:gat.*)'; waits

= a static member need not repeat its instance id after the join
m1 beats join instance=i1  -> waits
start i1 3 0  -> m1: 3 [0]
m1 beats 3 owned=0  -> m1: 3; i1 writes: acknowledges start
stored
m1 commits 3 7  -> i1 writes: 0=7; m1: ok

= a static member of an earlier term need not repeat its instance id
earlier i1 key=m1
m1 beats 5 owned=0,1  -> m1: 5 [0,1]

= a static member leaves for good
m1 beats join instance=i1  -> waits
m2 beats join instance=i1  -> m2: UNRELEASED_INSTANCE_ID
m1 beats leave instance=i1  -> i1 writes: leaves for good (left); waits
stored  -> m1: -1; m1: UNKNOWN_MEMBER_ID
# the instance id must be free again
m2 beats join instance=i1  -> waits

= a client that is gone before it learns its id leaves its place to the next one
m1 beats join new instance=i1  -> waits
m1 gone by-client  -> i1 writes: leaves (left)
# its next attempt cannot know the id of the first one
m2 beats join new instance=i1  -> waits
stored
start i1 3 0  -> m2: 3 [0]

= a client is gone before its registration is written, and one that knows its id is not missed
m1 beats join new unread  -> waits
m1 gone  -> m1 writes: leaves (left)
stored
m2 beats join unread  -> waits
m2 gone
m2 beats join  -> waits
start m2 3 0  -> m2: 3 [0]

= a static member leaves for now
m1 beats join instance=i1  -> waits
m1 beats leave-for-now instance=i1  -> i1 writes: leaves (left); waits
stored  -> m1: -2; m1: UNKNOWN_MEMBER_ID
m2 beats join instance=i1  -> waits

= a static member returns as another process
m1 beats join instance=i1  -> waits
start i1 3 0  -> m1: 3 [0]
m1 beats 3 owned=0 instance=i1  -> m1: 3; i1 writes: acknowledges start
stored
m1 beats leave-for-now instance=i1  -> i1 writes: leaves (left); waits
stored  -> m1: -2
m2 beats join instance=i1  -> waits
start i1 4 0  -> m2: 4 [0]
m1 beats 3 instance=i1  -> m1: FENCED_INSTANCE_ID
m1 commits 3 9  -> m1: UNKNOWN_MEMBER_ID
m2 beats 4 instance=i1  -> m2: 4 [0]

= a member of an earlier term keeps its partitions
earlier m1 m2
m1 commits 5 70  -> m1: COORDINATOR_LOAD_IN_PROGRESS
m1 beats 5 owned=0,1  -> m1: 5 [0,1]
m1 commits 5 70  -> m1 writes: 0=70; m1: ok
m3 beats 5  -> m3: UNKNOWN_MEMBER_ID

= a member with an epoch that no term can have sent is fenced
earlier m1
m1 beats 6 owned=0,1  -> m1: FENCED_MEMBER_EPOCH
m1 commits 6 70  -> m1: STALE_MEMBER_EPOCH
# a new incarnation waits for its partitions
m1 beats join  -> waits

= a member's epoch cannot be judged while its ledger is unreadable
unreadable generation
earlier m1
m1 beats 6 owned=0,1  -> m1: 6 [0,1]

= a client that lost an answer of an earlier term gets its assignment again
earlier m1
m1 beats 3 owned=0  -> m1: 5 [0,1]

= a client that owns more than an earlier term has given it is fenced
earlier m1
m1 beats 3 owned=0,1,2  -> m1: FENCED_MEMBER_EPOCH

= a term's first answer waits for the commands of the previous term
earlier m1
outstanding start
# the command has not been read yet
m1 beats 5 owned=0,1,2  -> waits
m1 commits 5 70  -> m1: COORDINATOR_LOAD_IN_PROGRESS
# its owner must know the start
start m1 5 2  -> m1: 5 [0,1,2]; m1 writes: acknowledges start
stored
m1 commits 5 70 partition=2  -> m1 writes: 2=70; m1: ok

= an unreadable command delays the answer only up to its limit
earlier m1
outstanding start
m1 beats 5 owned=0,1  -> waits
wait 1  -> m1: 5 [0,1]

= a new term sends a stop again if its acknowledgement was not written
earlier m1
outstanding stop
m1 beats 5 owned=0  -> waits
# the client may not have received the stop before
stop m1 5 1  -> m1: 5 [0]
m1 beats 5 owned=0  -> m1: 5; m1 writes: acknowledges stop

= an evicted member is unknown, and its waiting requests are answered
holds m1 0
m1 commits 3 8 unwritten  -> m1 writes: 0=8; waits
deleted m1  -> m1: UNKNOWN_MEMBER_ID
m1 beats 3  -> m1: UNKNOWN_MEMBER_ID

= a held heartbeat is answered when its member's registration is deleted
holds m1 0 librdkafka
m1 beats 3  -> waits
deleted m1  -> m1: UNKNOWN_MEMBER_ID
due  -> in inf s

= a held heartbeat is answered when the term ends
holds m1 0 librdkafka
m1 beats 3  -> waits
term ends  -> m1: NOT_COORDINATOR
due  -> in inf s

= waiting requests are answered NOT_COORDINATOR when the term ends
m1 beats join  -> waits
term ends  -> m1: NOT_COORDINATOR
