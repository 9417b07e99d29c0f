The state machine of a client-assigned group: joins, syncs, commits and leaves. After a step that changes it, the group
stands in brackets, with its leader (*) and those that have not synced (?).

= the first join is answered at once, and its member leads
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]

= a second member waits until the first has joined again
stable m1  -> [Stable 1 m1*]
m2 joins  -> [PreparingRebalance 1 m1* m2]
m1 beats  -> m1 beats: REBALANCE_IN_PROGRESS
m1 joins  -> m1 joins: 2 range, leads m1 m2; m2 joins: 2 range, under m1; [CompletingRebalance 2 m1*? m2?]

= a member that does not join in time is removed, and the others go on
stable m1 m2  -> [Stable 2 m1* m2]
m3 joins  -> [PreparingRebalance 2 m1* m2 m3]
m1 joins
wait 60 m2
    m2 beats: REBALANCE_IN_PROGRESS (11 times)
    m1 joins: 3 range, leads m1 m3
    m3 joins: 3 range, under m1
    [CompletingRebalance 3 m1*? m3?]
departed  -> m2 expired after 60 s

= syncs of followers wait for the sync of the leader
stable m1  -> [Stable 1 m1*]
m2 joins  -> [PreparingRebalance 1 m1* m2]
m1 joins  -> m1 joins: 2 range, leads m1 m2; m2 joins: 2 range, under m1; [CompletingRebalance 2 m1*? m2?]
m2 syncs  -> [CompletingRebalance 2 m1*? m2]
m1 syncs m1=one m2=two
    #2 is written by the leader: m1=one m2=two
    m1 syncs: range, one
    m2 syncs: range, two
    [Stable 2 m1* m2]

= a sync is not answered before the assignment is stored
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
log waits
m1 syncs m1=one  -> #1 is written by the leader: m1=one; [CompletingRebalance 1 m1*]
stored 1  -> m1 syncs: range, one; [Stable 1 m1*]

= an assignment that could not be stored is not returned, the group rebalances, and its number is not used again
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
log NOT_COORDINATOR
m1 syncs m1=one  -> #1 is written by the leader: m1=one; m1 syncs: NOT_COORDINATOR; [PreparingRebalance 1 m1*]
log ok
m1 joins  -> m1 joins: 2 range, leads m1; [CompletingRebalance 2 m1*?]

= a store of an older generation changes nothing
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
log waits
m1 syncs m1=old  -> #1 is written by the leader: m1=old; [CompletingRebalance 1 m1*]
m1 joins metadata=changed
    m1 syncs: REBALANCE_IN_PROGRESS
    m1 joins: 2 range, leads m1 (changed)
    [CompletingRebalance 2 m1*?]
stored 1
m1 syncs m1=new  -> #2 is written by the leader: m1=new; [CompletingRebalance 2 m1*]
stored 2  -> m1 syncs: range, new; [Stable 2 m1*]

= a leader that syncs twice does not write two assignments of one generation
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
log waits
m1 syncs m1=one  -> #1 is written by the leader: m1=one; [CompletingRebalance 1 m1*]
m1 syncs m1=two  -> m1 syncs: REBALANCE_IN_PROGRESS
stored 1  -> m1 syncs: range, one; [Stable 1 m1*]

= a join that is repeated gets the same answer again, from a leader of a stable group a rebalance
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
m1 joins  -> m1 joins: 1 range, leads m1
m2 joins  -> [PreparingRebalance 1 m1* m2]
m1 joins  -> m1 joins: 2 range, leads m1 m2; m2 joins: 2 range, under m1; [CompletingRebalance 2 m1*? m2?]
m1 syncs m1=one m2=two  -> #1 is written by the leader: m1=one m2=two; m1 syncs: range, one; [Stable 2 m1* m2?]
m2 syncs  -> m2 syncs: range, two; [Stable 2 m1* m2]
m2 joins  -> m2 joins: 2 range, under m1
m1 joins  -> [PreparingRebalance 2 m1* m2]

= a session timeout that is too short or too long is refused
m1 joins session=5  -> m1 joins as nobody: INVALID_SESSION_TIMEOUT
m1 joins session=1801  -> m1 joins as nobody: INVALID_SESSION_TIMEOUT

= a member that is not heard of is removed after its session
stable m1 m2  -> [Stable 2 m1* m2]
wait 9 m1  -> m1 beats: ok (2 times)
wait 1 m1  -> m1 beats: REBALANCE_IN_PROGRESS; [PreparingRebalance 2 m1*]

= a member whose request is held here does not expire
stable m1  -> [Stable 1 m1*]
m2 joins  -> [PreparingRebalance 1 m1* m2]
wait 25 m1  -> m1 beats: REBALANCE_IN_PROGRESS (5 times)

= a new member whose join is held for minutes is forgotten
stable m1  -> [Stable 1 m1*]
m1 joins metadata=new  -> m1 joins: 2 range, leads m1 (new); [CompletingRebalance 2 m1*?]
m1 syncs m1=  -> #2 is written by the leader: m1=; m1 syncs: range, nothing; [Stable 2 m1*]
m2 joins rebalance=900  -> [PreparingRebalance 2 m1* m2]
wait 301 m1
    m1 beats: REBALANCE_IN_PROGRESS (59 times)
    m2 joins as nobody: UNKNOWN_MEMBER_ID
    m1 beats: REBALANCE_IN_PROGRESS (2 times)
    [PreparingRebalance 2 m1*]

= a new client gets a member id before it becomes a member
m1 joins must-know-id  -> m1 joins: MEMBER_ID_REQUIRED
m1 joins must-know-id  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]

= a member id that is never used is forgotten
m1 joins must-know-id  -> m1 joins: MEMBER_ID_REQUIRED
wait 11
m1 joins id=m1  -> m1 joins: UNKNOWN_MEMBER_ID

= a newcomer that vanished holds up no first join
gone joins must-know-id  -> gone joins: MEMBER_ID_REQUIRED
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]

= a newcomer that vanished holds up no join before the group is stable
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
gone joins must-know-id  -> gone joins: MEMBER_ID_REQUIRED
m2 joins  -> [PreparingRebalance 1 m1* m2]
m1 joins  -> m1 joins: 2 range, leads m1 m2; m2 joins: 2 range, under m1; [CompletingRebalance 2 m1*? m2?]

= a newcomer that vanished holds up the rebalance of a stable group, as in Kafka
stable m1  -> [Stable 1 m1*]
gone joins must-know-id  -> gone joins: MEMBER_ID_REQUIRED
m2 joins  -> [PreparingRebalance 1 m1* m2]
m1 joins
wait 11  -> m1 joins: 2 range, leads m1 m2; m2 joins: 2 range, under m1; [CompletingRebalance 2 m1*? m2?]

= a newcomer that vanished does not keep a group without members from becoming empty
stable m1  -> [Stable 1 m1*]
gone joins must-know-id  -> gone joins: MEMBER_ID_REQUIRED
# the leader wants a rebalance
m1 joins offers=range,roundrobin  -> [PreparingRebalance 1 m1*]
leave m1  -> m1 joins as nobody: UNKNOWN_MEMBER_ID; #2 is written: empty; leave: m1 ok; [Empty 2]
m2 joins  -> m2 joins: 3 range, leads m2; [CompletingRebalance 3 m2*?]

= the chosen protocol is supported by all and preferred by most members
m1 joins offers=sticky,range  -> m1 joins: 1 sticky, leads m1; [CompletingRebalance 1 m1*?]
m2 joins offers=range,roundrobin,sticky  -> [PreparingRebalance 1 m1* m2]
m3 joins offers=range,sticky  -> [PreparingRebalance 1 m1* m2 m3]
m1 joins offers=sticky,range
    m1 joins: 2 range, leads m1 m2 m3
    m2 joins: 2 range, under m1
    m3 joins: 2 range, under m1
    [CompletingRebalance 2 m1*? m2? m3?]
m4 joins offers=roundrobin  -> m4 joins as nobody: INCONSISTENT_GROUP_PROTOCOL

= an empty group's first rebalance waits for more members
limit initial_rebalance_delay_s=0.6
m1 joins  -> [PreparingRebalance 0 m1*]
wait 0.4
m2 joins  -> [PreparingRebalance 0 m1* m2]
wait 0.4
wait 0.5  -> m1 joins: 1 range, leads m1 m2; m2 joins: 1 range, under m1; [CompletingRebalance 1 m1*? m2?]

= a group above a lowered limit keeps those that join first
stable m1 m2  -> [Stable 2 m1* m2]
limit max_size=1
m1 joins offers=sticky,range  -> [PreparingRebalance 2 m1* m2]
m2 joins  -> m2 joins as nobody: GROUP_MAX_SIZE_REACHED; m1 joins: 3 sticky, leads m1; [CompletingRebalance 3 m1*?]

= a static leader that does not join in time keeps its place, and another member leads
s1 joins instance=i1 session=600  -> s1 joins: 1 range, leads s1/i1; [CompletingRebalance 1 s1*?]
m2 joins  -> [PreparingRebalance 1 s1* m2]
wait 60  -> m2 joins: 2 range, leads s1/i1 m2; [CompletingRebalance 2 s1? m2*?]

= a member that never syncs is removed
m1 joins session=600  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
m2 joins session=600  -> [PreparingRebalance 1 m1* m2]
m1 joins session=600  -> m1 joins: 2 range, leads m1 m2; m2 joins: 2 range, under m1; [CompletingRebalance 2 m1*? m2?]
m1 syncs m1=one  -> #1 is written by the leader: m1=one m2=; m1 syncs: range, one; [Stable 2 m1* m2?]
wait 59
wait 1  -> [PreparingRebalance 2 m1*]
departed  -> m2 expired after 60 s

= any client may commit to an empty group without a generation
somebody commits generation=-1  -> somebody commits: ok

= only members of the generation commit
stable m1  -> [Stable 1 m1*]
m1 commits  -> m1 commits: ok
m1 commits generation=0  -> m1 commits: ILLEGAL_GENERATION
m1 commits generation=2  -> m1 commits: ILLEGAL_GENERATION
stranger commits  -> stranger commits: UNKNOWN_MEMBER_ID
stranger commits generation=2  -> stranger commits: UNKNOWN_MEMBER_ID
'' commits generation=-1  -> nobody commits: UNKNOWN_MEMBER_ID

= a commit that arrives late on an earlier connection is refused
stable m1  -> [Stable 1 m1*]
m1 commits on=2  -> m1 commits: ok
m1 commits on=1  -> m1 commits: COORDINATOR_NOT_AVAILABLE
m1 commits on=2  -> m1 commits: ok

= a commit between join and sync is refused
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
m1 commits  -> m1 commits: REBALANCE_IN_PROGRESS

= the last member that leaves leaves an empty group that is stored
stable m1  -> [Stable 1 m1*]
leave m1 stranger  -> #2 is written: empty; leave: m1 ok, stranger UNKNOWN_MEMBER_ID; [Empty 2]

= a group that became empty is written again until the log takes it
stable m1  -> [Stable 1 m1*]
log COORDINATOR_NOT_AVAILABLE
leave m1  -> #2 is written: empty; leave: m1 ok; [Empty 2]
wait 2.5  -> #3 is written: empty; #4 is written: empty
log ok
wait 5  -> #5 is written: empty

= a topic that was made anew is assigned again
stable m1 m2  -> [Stable 2 m1* m2]
topics replaced  -> [PreparingRebalance 2 m1* m2]
m1 joins
m2 joins  -> m1 joins: 3 range, leads m1 m2; m2 joins: 3 range, under m1; [CompletingRebalance 3 m1*? m2?]

= a group that moves answers all waiting requests
stable m1  -> [Stable 1 m1*]
m2 joins  -> [PreparingRebalance 1 m1* m2]
ends NOT_COORDINATOR  -> m2 joins: NOT_COORDINATOR; [Dead 1 m1* m2]

= a group that has ended answers nothing
stable m1  -> [Stable 1 m1*]
ends NOT_COORDINATOR  -> [Dead 1 m1*]
m1 joins  -> m1 joins: COORDINATOR_NOT_AVAILABLE
m1 syncs  -> m1 syncs: COORDINATOR_NOT_AVAILABLE
m1 beats  -> m1 beats: COORDINATOR_NOT_AVAILABLE
m1 commits  -> m1 commits: COORDINATOR_NOT_AVAILABLE
leave m1  -> leave: COORDINATOR_NOT_AVAILABLE
wait 600

= syncs that are late or wrong are refused
stable m1  -> [Stable 1 m1*]
stranger syncs  -> stranger syncs: UNKNOWN_MEMBER_ID
m1 syncs generation=0  -> m1 syncs: ILLEGAL_GENERATION
m1 syncs  -> m1 syncs: range, for-m1
m2 joins  -> [PreparingRebalance 1 m1* m2]
m1 syncs  -> m1 syncs: REBALANCE_IN_PROGRESS

= an id that was handed out may be given back
m1 joins must-know-id  -> m1 joins: MEMBER_ID_REQUIRED
leave m1  -> leave: m1 ok
m1 joins id=m1  -> m1 joins: UNKNOWN_MEMBER_ID

= a group knows how its members went until that is stored
stable m1 m2 m3 m4  -> [Stable 4 m1* m2 m3 m4]
leave m2 client=c by="User:a (client id c, h:7)"  -> leave: m2 ok; [PreparingRebalance 4 m1* m3 m4]
leave m3 client=admin by="User:b (client id admin, h:8)"  -> leave: m3 ok; [PreparingRebalance 4 m1* m4]
m1 joins
wait 11  -> m1 joins: 5 range, leads m1; [CompletingRebalance 5 m1*?]
departed  -> m2 left; m3 evicted by User:b (client id admin, h:8); m4 expired after 10 s
log waits
m1 syncs m1=all  -> #2 is written by the leader: m1=all; [CompletingRebalance 5 m1*]
departed  -> m2 left; m3 evicted by User:b (client id admin, h:8); m4 expired after 10 s
stored 2  -> m1 syncs: range, all; [Stable 5 m1*]
departed  -> nobody

= an id that was handed out is unknown once its session is over
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
gone joins must-know-id session=6  -> gone joins: MEMBER_ID_REQUIRED
m1 syncs m1=all  -> #1 is written by the leader: m1=all; m1 syncs: range, all; [Stable 1 m1*]
wait 6
gone joins id=gone  -> gone joins: UNKNOWN_MEMBER_ID
