The state machine of a client-assigned group: static members, which come back in another process. "returning" makes a
stable group of the leader m1 and the static member s1, which has returned as s2; the log has not answered yet.

= a returning static member gets its assignment without a rebalance
s1 joins instance=i1  -> s1 joins: 1 range, leads s1/i1; [CompletingRebalance 1 s1*?]
s1 syncs instance=i1 s1=mine  -> #1 is written by the leader: s1=mine; s1 syncs: range, mine; [Stable 1 s1*]
s2 joins instance=i1 can-skip
    #2 is written: s1 is s2 s2=mine
    s2 joins: 1 range, leads s2/i1, has its assignment
    [Stable 1 s2*]
s1 beats instance=i1  -> s1 beats: FENCED_INSTANCE_ID
s2 syncs  -> s2 syncs: range, mine
departed  -> i1 replaced by client id c (/h)

= the return of a static member that could not be stored is undone
s1 joins instance=i1  -> s1 joins: 1 range, leads s1/i1; [CompletingRebalance 1 s1*?]
s1 syncs instance=i1 s1=mine  -> #1 is written by the leader: s1=mine; s1 syncs: range, mine; [Stable 1 s1*]
log NOT_COORDINATOR
s2 joins instance=i1  -> #2 is written: s1 is s2 s2=mine; s2 joins as nobody: NOT_COORDINATOR
s1 beats instance=i1  -> s1 beats: ok

= a refused return leaves the old process a member that was told nothing
s1 joins instance=i1  -> s1 joins: 1 range, leads s1/i1; [CompletingRebalance 1 s1*?]
s1 syncs instance=i1 s1=mine  -> #1 is written by the leader: s1=mine; s1 syncs: range, mine; [Stable 1 s1*]
s1 beats librdkafka instance=i1  -> s1's heartbeat is held 2.75 s
log waits
s2 joins instance=i1  -> #2 is written: s1 is s2 s2=mine; [Stable 1 s2*]
stored 2 COORDINATOR_NOT_AVAILABLE  -> s1 beats: ok; s2 joins as nobody: COORDINATOR_NOT_AVAILABLE; [Stable 1 s1*]
s1 beats instance=i1  -> s1 beats: ok

= a static return gets the generation at the time of the response
returning  -> [Stable 2 m1* s2]
# its join counts, so all members have joined and the rebalance completes
m1 joins offers=range,sticky
    m1 joins: 3 range, leads m1 s2/i1
    s2 joins: 3 range, under m1
    [CompletingRebalance 3 m1*? s2?]
stored 2

= a static return that is stored during a rebalance joins again, as in Kafka
returning  -> [Stable 2 m1* s2]
m3 joins  -> [PreparingRebalance 2 m1* s2 m3]
stored 2  -> s2 joins: 2 range, under m1
s2 joins instance=i1
m1 joins
    m1 joins: 3 range, leads m1 s2/i1 m3
    s2 joins: 3 range, under m1
    m3 joins: 3 range, under m1
    [CompletingRebalance 3 m1*? s2? m3?]

= a second static return fences the first while it is being written
returning  -> [Stable 2 m1* s2]
s3 joins instance=i1  -> s2 joins: FENCED_INSTANCE_ID; #3 is written: s2 is s3 m1=one s3=mine; [Stable 2 m1* s3]
stored 2
stored 3  -> s3 joins: 2 range, under m1

= an id that the log never held is given up by a rebalance
returning  -> [Stable 2 m1* s2]
s3 joins instance=i1  -> s2 joins: FENCED_INSTANCE_ID; #3 is written: s2 is s3 m1=one s3=mine; [Stable 2 m1* s3]
stored 2 COORDINATOR_NOT_AVAILABLE  -> [PreparingRebalance 2 m1* s3]

= a static return whose write fails after it was answered keeps its place
returning  -> [Stable 2 m1* s2]
m1 joins offers=range,sticky
    m1 joins: 3 range, leads m1 s2/i1
    s2 joins: 3 range, under m1
    [CompletingRebalance 3 m1*? s2?]
stored 2 NOT_COORDINATOR

= a static return is answered when the group moves
returning  -> [Stable 2 m1* s2]
ends NOT_COORDINATOR  -> s2 joins: NOT_COORDINATOR; [Dead 2 m1* s2]
stored 2 NOT_COORDINATOR

= a handed-out id does not take the place of a static member
m1 joins instance=i1  -> m1 joins: 1 range, leads m1/i1; [CompletingRebalance 1 m1*?]
m1 syncs m1=all  -> #1 is written by the leader: m1=all; m1 syncs: range, all; [Stable 1 m1*]
m2 joins must-know-id  -> m2 joins: MEMBER_ID_REQUIRED
m2 joins instance=i1  -> m2 joins: FENCED_INSTANCE_ID
m2 joins instance=i2  -> m2 joins: UNKNOWN_MEMBER_ID
m1 beats  -> m1 beats: ok

= a static member that returns is replaced, and by whom is known
s1 joins instance=i1  -> s1 joins: 1 range, leads s1/i1; [CompletingRebalance 1 s1*?]
s2 joins instance=i1 client=two host=/10.0.0.5  -> s2 joins: 2 range, leads s2/i1; [CompletingRebalance 2 s2*?]
departed  -> i1 replaced by client id two (/10.0.0.5)

= a static member leaves by its instance id, but not with the member id of another process
s1 joins instance=i1  -> s1 joins: 1 range, leads s1/i1; [CompletingRebalance 1 s1*?]
leave s2/i1 s1/i2 /i1  -> #1 is written: empty; leave: s2 FENCED_INSTANCE_ID, s1 UNKNOWN_MEMBER_ID, i1 ok; [Empty 2]

= a process that was replaced may neither sync nor commit
returning  -> [Stable 2 m1* s2]
stored 2  -> s2 joins: 2 range, under m1
s1 syncs instance=i1  -> s1 syncs: FENCED_INSTANCE_ID
s2 syncs instance=i1  -> s2 syncs: range, mine
s1 commits  -> s1 commits: UNKNOWN_MEMBER_ID
