// A member by franz-go: BOOTSTRAP TOPIC GROUP NAME [STRATEGY [INSTANCE_ID]].
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var (
	lock sync.Mutex
	held = map[int32]bool{}
)

func tell(change map[string][]int32, topic string, has bool) {
	lock.Lock()
	defer lock.Unlock()
	for _, partition := range change[topic] {
		if has {
			held[partition] = true
		} else {
			delete(held, partition)
		}
	}
	var names []string
	for partition := range held {
		names = append(names, fmt.Sprint(partition))
	}
	sort.Strings(names)
	fmt.Println("assigned " + strings.Join(names, ","))
}

func main() {
	bootstrap, topic, group, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	balancer := kgo.RangeBalancer()
	if len(os.Args) > 5 && os.Args[5] == "cooperative-sticky" {
		balancer = kgo.CooperativeStickyBalancer()
	}
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic),
		kgo.ClientID(name), kgo.DisableAutoCommit(), kgo.Balancers(balancer),
		kgo.WithLogger(kgo.BasicLogger(os.Stdout, kgo.LogLevelWarn, nil)),
		kgo.SessionTimeout(6 * time.Second), kgo.HeartbeatInterval(1500 * time.Millisecond),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, change map[string][]int32) { tell(change, topic, true) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, change map[string][]int32) { tell(change, topic, false) }),
		kgo.OnPartitionsLost(func(_ context.Context, _ *kgo.Client, change map[string][]int32) { tell(change, topic, false) }),
	}
	if len(os.Args) > 6 {
		options = append(options, kgo.InstanceID(os.Args[6]))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { io.Copy(io.Discard, os.Stdin); stop() }()
	for ctx.Err() == nil {
		found := client.PollFetches(ctx)
		found.EachError(func(_ string, _ int32, err error) { fmt.Println("#", err) })
		count := 0
		found.EachRecord(func(one *kgo.Record) {
			fmt.Println("record", one.Partition, one.Offset)
			count++
		})
		if count > 0 {
			if err := client.CommitUncommittedOffsets(context.Background()); err != nil {
				fmt.Println("#", err)
			} else {
				fmt.Println("committed")
			}
		}
	}
	client.Close()
	fmt.Println("closed")
}
