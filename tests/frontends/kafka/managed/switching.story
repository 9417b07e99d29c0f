Static members of a managed group that come back under the other protocol: c1 is classic, k1 and k2 are KIP-848 clients.

= a KIP-848 client takes the place of a classic member with its instance id
has c1 0 instance=i1
c1 pings 3 instance=i1  -> waits
# UNRELEASED_INSTANCE_ID would be fatal to librdkafka and the Java client
k1 beats join instance=i1  -> c1: FENCED_INSTANCE_ID; i1 writes: leaves (replaced); waits
c1 pings 3 instance=i1  -> c1: FENCED_INSTANCE_ID
c1 commits 3 9 instance=i1 unwritten  -> c1: FENCED_INSTANCE_ID
# the place is kept
stored
start i1 4 0  -> k1: 4 [0]

= the former classic client is fenced whatever it sends
has c1 0 instance=i1
k1 beats join instance=i1  -> i1 writes: leaves (replaced); waits
# while it is replaced
c1 joins instance=i1  -> c1: FENCED_INSTANCE_ID
stored
start i1 4 0  -> k1: 4 [0]
# UNKNOWN_MEMBER_ID would make it take the place back
c1 pings 3 instance=i1  -> c1: FENCED_INSTANCE_ID
c1 syncs 3 instance=i1  -> c1: FENCED_INSTANCE_ID
c1 joins instance=i1  -> c1: FENCED_INSTANCE_ID

= the held join of a classic client is fenced while its subscription is written
has c1 0 instance=i1
c1 joins instance=i1 topics=weather  -> i1 writes: subscribes topics weather; waits
k1 beats join instance=i1  -> c1: FENCED_INSTANCE_ID; waits

= a KIP-848 client takes the place of a classic member of an earlier term
earlier i1 key=c1 protocol=classic
k1 beats join instance=i1  -> i1 writes: leaves (replaced); waits
c1 pings 3 instance=i1  -> c1: FENCED_INSTANCE_ID
stored
start i1 6 0,1  -> k1: 6 [0,1]

= a former classic client is fenced by a term that has not heard its successor
earlier i1 key=k1
c1 pings 3 instance=i1  -> c1: FENCED_INSTANCE_ID

= a KIP-848 client that repeats its join still takes the place
has c1 0 instance=i1
k1 beats join instance=i1  -> i1 writes: leaves (replaced); waits
k1 beats join instance=i1  -> k1: COORDINATOR_LOAD_IN_PROGRESS; waits
stored
start i1 4 0  -> k1: 4 [0]

= a client that leaves while it takes a place does not keep out its next process
has c1 0 instance=i1
k1 beats join instance=i1  -> i1 writes: leaves (replaced); waits
k1 beats leave instance=i1  -> k1: UNKNOWN_MEMBER_ID; k1: -1
stored
# UNRELEASED_INSTANCE_ID would be fatal
k2 beats join instance=i1  -> waits
start i1 4 0  -> k2: 4 [0]
c1 pings 3 instance=i1  -> c1: FENCED_INSTANCE_ID

= a client that leaves for now while it takes a place does not keep out its next process
has c1 0 instance=i1
k1 beats join instance=i1  -> i1 writes: leaves (replaced); waits
k1 beats leave-for-now instance=i1  -> k1: UNKNOWN_MEMBER_ID; k1: -2
stored
k2 beats join instance=i1  -> waits
start i1 4 0  -> k2: 4 [0]
c1 pings 3 instance=i1  -> c1: FENCED_INSTANCE_ID

= a client that leaves before the member of an earlier term is resumed leaves that member its place
earlier i1 key=c1 protocol=classic
# before ZooKeeper has answered
k1 beats join unread instance=i1  -> waits
k1 beats leave whole owned= instance=i1  -> k1: UNKNOWN_MEMBER_ID; k1: -1
c1 pings 3 instance=i1  -> waits

= a client whose process ends while it takes a place does not keep out its next process
has c1 0 instance=i1
k1 beats join unread instance=i1  -> waits
k1 gone by-client  -> i1 writes: leaves (replaced)
k2 beats join instance=i1  -> waits
stored
start i1 4 0  -> k2: 4 [0]

= a client whose process ends while it takes the place of an earlier term does not keep out its next process
earlier i1 key=c1 protocol=classic
k1 beats join unread instance=i1  -> waits
k1 gone by-client
k2 beats join instance=i1  -> i1 writes: leaves (replaced); waits
stored
start i1 4 0  -> k2: 4 [0]

= of two KIP-848 clients the first takes the place of a classic member
has c1 0 instance=i1
k1 beats join instance=i1  -> i1 writes: leaves (replaced); waits
# both are alive
k2 beats join instance=i1  -> k2: UNRELEASED_INSTANCE_ID
stored
k2 beats join instance=i1  -> k2: UNRELEASED_INSTANCE_ID

= two living KIP-848 clients do not take each other's place
# a member of an earlier term counts as alive
earlier i1 key=k1
k2 beats join instance=i1  -> k2: UNRELEASED_INSTANCE_ID

= a classic client takes the place of a KIP-848 member
k1 beats join instance=i1  -> waits
start i1 3 0  -> k1: 3 [0]
k1 beats 3 instance=i1  -> k1: 3 [0]
c1 joins new instance=i1  -> i1 writes: leaves (replaced); waits
k1 beats 3 instance=i1  -> k1: FENCED_INSTANCE_ID
stored
start i1 4 0  -> c1: 4 cooperative-sticky
k1 beats 3 instance=i1  -> k1: FENCED_INSTANCE_ID
# librdkafka does not repeat the instance id; UNKNOWN_MEMBER_ID would make it take the place back
k1 beats 3  -> k1: FENCED_INSTANCE_ID
k1 beats join instance=i1  -> k1: FENCED_INSTANCE_ID

= a classic client takes the place of a KIP-848 member that left temporarily
k1 beats join instance=i1  -> waits
k1 beats leave-for-now instance=i1  -> i1 writes: leaves (left); waits
stored  -> k1: -2; k1: UNKNOWN_MEMBER_ID
c1 joins new instance=i1  -> waits
start i1 4 0  -> c1: 4 cooperative-sticky

= a dynamic KIP-848 client does not take the place of a classic member with the same name
m1 joins  -> waits
start m1 3 0  -> m1: 3 cooperative-sticky
m1 beats join  -> m1: UNRELEASED_INSTANCE_ID

= of clients that come and go under both protocols the last takes the place
has c1 0 instance=i1
k1 beats join instance=i1  -> i1 writes: leaves (replaced); waits
# the former instance came back, and was sent forward again, before ZooKeeper had answered
c2 joins new instance=i1  -> k1: FENCED_INSTANCE_ID; waits
k2 beats join instance=i1  -> c2: FENCED_INSTANCE_ID; waits
c1 pings 3 instance=i1  -> c1: FENCED_INSTANCE_ID
k1 beats join instance=i1  -> k1: UNRELEASED_INSTANCE_ID
stored
start i1 4 0  -> k2: 4 [0]
k1 beats 3 instance=i1  -> k1: FENCED_INSTANCE_ID
c2 joins instance=i1  -> c2: FENCED_INSTANCE_ID

= a static client does not take the name of a consumer of this project, under either protocol
name i1 taken
k1 beats join instance=i1  -> k1: UNRELEASED_INSTANCE_ID
c1 joins new instance=i1  -> c1: FENCED_INSTANCE_ID
name i1 free
k2 beats join instance=i1  -> waits
start i1 4 0  -> k2: 4 [0]
