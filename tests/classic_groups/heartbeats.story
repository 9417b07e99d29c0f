The state machine of a client-assigned group: heartbeats that it holds.

= held heartbeats are answered when a rebalance begins
stable m1 m2  -> [Stable 2 m1* m2]
m1 beats java  -> m1's heartbeat is held 3.33 s
m2 beats java  -> m2's heartbeat is held 3.33 s
m3 joins  -> m1 beats: REBALANCE_IN_PROGRESS; m2 beats: REBALANCE_IN_PROGRESS; [PreparingRebalance 2 m1* m2 m3]

= the held heartbeat of a removed member is answered with UNKNOWN_MEMBER_ID
stable m1 m2  -> [Stable 2 m1* m2]
m1 beats java  -> m1's heartbeat is held 3.33 s
m2 beats java  -> m2's heartbeat is held 3.33 s
leave m2  -> m2 beats: UNKNOWN_MEMBER_ID; m1 beats: REBALANCE_IN_PROGRESS; leave: m2 ok; [PreparingRebalance 2 m1*]

= a held heartbeat is answered with NOT_COORDINATOR when the group moves
stable m1  -> [Stable 1 m1*]
m1 beats java  -> m1's heartbeat is held 3.33 s
ends NOT_COORDINATOR  -> m1 beats: NOT_COORDINATOR; [Dead 1 m1*]

= a released heartbeat is answered only once and without an error
stable m1  -> [Stable 1 m1*]
m1 beats java  -> m1's heartbeat is held 3.33 s
m1 released  -> m1 beats: ok
m1 released

= the release of a removed member's heartbeat changes nothing
stable m1  -> [Stable 1 m1*]
m1 beats java  -> m1's heartbeat is held 3.33 s
leave m1  -> m1 beats: UNKNOWN_MEMBER_ID; #2 is written: empty; leave: m1 ok; [Empty 2]
m1 released

= a heartbeat of a lost connection no longer keeps its member
stable m1  -> [Stable 1 m1*]
m1 beats java  -> m1's heartbeat is held 3.33 s
m1 disconnects
wait 10  -> #2 is written: empty; [Empty 2]

= the heartbeats of a client that gave one up are no longer held
stable m1 m2  -> [Stable 2 m1* m2]
m1 beats java  -> m1's heartbeat is held 3.33 s
wait 3
m1 disconnects by-client
m1 beats java  -> m1 beats: ok
wait 3
m1 beats java  -> m1 beats: ok
wait 3
m1 beats java  -> m1 beats: ok

= a heartbeat on another connection shows that the held one was given up
stable m1  -> [Stable 1 m1*]
m1 beats java  -> m1's heartbeat is held 3.33 s
wait 3
m1 beats java  -> m1 beats: ok (2 times)
m1 beats java  -> m1 beats: ok

= a connection that this instance closed does not end holds
stable m1  -> [Stable 1 m1*]
m1 beats java  -> m1's heartbeat is held 3.33 s
wait 1
m1 disconnects
m1 beats java  -> m1's heartbeat is held 3.33 s

= a late answer does not end holds
stable m1  -> [Stable 1 m1*]
m1 beats java  -> m1's heartbeat is held 3.33 s
wait 4
m1 disconnects by-client
m1 beats java  -> m1's heartbeat is held 2.67 s

= heartbeats of a static member's next process are held again
s1 joins instance=i1  -> s1 joins: 1 range, leads s1/i1; [CompletingRebalance 1 s1*?]
s1 syncs instance=i1 s1=mine  -> #1 is written by the leader: s1=mine; s1 syncs: range, mine; [Stable 1 s1*]
# killed while it is held
s1 beats java instance=i1  -> s1's heartbeat is held 3.33 s
s1 disconnects by-client
s2 joins instance=i1  -> #2 is written: s1 is s2 s2=mine; s2 joins: 1 range, under s1; [Stable 1 s2*]
s2 beats java instance=i1  -> s2's heartbeat is held 3.33 s

= the heartbeat of a member that has not synced is not held
m1 joins  -> m1 joins: 1 range, leads m1; [CompletingRebalance 1 m1*?]
m1 beats java  -> m1 beats: ok

= librdkafka sends its heartbeat again when it has sent something else
# the client may have joined again or left since, so the answer must not end a newer membership
stable m1 m2  -> [Stable 2 m1* m2]
m1 beats librdkafka  -> m1's heartbeat is held 2.75 s
m1 released by-client  -> m1 beats: COORDINATOR_LOAD_IN_PROGRESS
m1 beats librdkafka generation=1  -> m1 beats: ok
leave m1  -> leave: m1 ok; [PreparingRebalance 2 m2*]
m1 beats librdkafka generation=1  -> m1 beats: ok
wait 2
m1 beats librdkafka generation=1  -> m1 beats: UNKNOWN_MEMBER_ID

= a hold and the silence after it stay within the session timeout
stable m1  -> [Stable 1 m1*]
wait 3
m1 beats java  -> m1's heartbeat is held 3.33 s
wait 3.33
m1 released  -> m1 beats: ok
# it sends heartbeats less often than most
wait 5
m1 beats java  -> m1's heartbeat is held 1.67 s
wait 1.66
m1 released  -> m1 beats: ok
wait 7
m1 beats  -> m1 beats: ok

= a member that is silent for most of its session is not held
stable m1  -> [Stable 1 m1*]
wait 7
m1 beats java  -> m1 beats: ok

= a member of a group that was of another kind acts under the generation that it knows until it joins again
stable m1 m2  -> [Stable 2 m1* m2]
m1 knew 1
m1 commits generation=1  -> m1 commits: ok
m1 commits generation=2  -> m1 commits: ILLEGAL_GENERATION
m3 joins  -> [PreparingRebalance 2 m1* m2 m3]
m1 beats generation=1  -> m1 beats: REBALANCE_IN_PROGRESS
m1 commits generation=1  -> m1 commits: ok
m1 joins
m1 commits generation=1  -> m1 commits: ILLEGAL_GENERATION
