// A member by Sarama: BOOTSTRAP TOPIC GROUP NAME.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type member struct{ topic string }

func (m member) Setup(session sarama.ConsumerGroupSession) error {
	fmt.Println("assigned " + strings.Trim(strings.ReplaceAll(fmt.Sprint(session.Claims()[m.topic]), " ", ","), "[]"))
	return nil
}

func (m member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case one, ok := <-claim.Messages():
			if !ok {
				return nil
			}
			fmt.Println("record", one.Partition, one.Offset)
			session.MarkMessage(one, "")
			if len(claim.Messages()) == 0 {
				session.Commit()
				fmt.Println("committed")
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	bootstrap, topic, group, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	settings := sarama.NewConfig()
	settings.ClientID = name
	settings.Version = sarama.V2_8_0_0
	settings.Consumer.Offsets.Initial = sarama.OffsetOldest
	settings.Consumer.Offsets.AutoCommit.Enable = false
	settings.Consumer.Group.Session.Timeout = 6 * time.Second
	settings.Consumer.Group.Heartbeat.Interval = 1500 * time.Millisecond
	client, err := sarama.NewConsumerGroup(strings.Split(bootstrap, ","), group, settings)
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() { io.Copy(io.Discard, os.Stdin); stop() }()
	for ctx.Err() == nil {
		if err := client.Consume(ctx, []string{topic}, member{topic}); err != nil {
			fmt.Println("#", err)
			time.Sleep(500 * time.Millisecond)
		}
	}
	client.Close()
	fmt.Println("closed")
}
