// A consumer of kafka_coord's socket channel, written from docs/socket-protocol.md alone: it needs no ZooKeeper.
//
// It prints one line of JSON for every record it is given, and leaves cleanly when it is interrupted:
//
//	go run . -bootstrap broker1:7171,broker2:7171 -group delays -topic flights
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type settings struct {
	bootstrap      []string
	group          string
	topic          string
	consumerID     string
	resumeKey      string
	sessionTimeout time.Duration
	fromStart      bool
	laterFromEnd   bool
	listener, user string
}

func main() {
	var s settings
	bootstrap := flag.String("bootstrap", "", "host:port,… of broker hosts where kafka-coord serve --listen-channel listens")
	flag.StringVar(&s.group, "group", "", "the group")
	flag.StringVar(&s.topic, "topic", "", "the topic")
	flag.StringVar(&s.consumerID, "consumer-id", "", "a name of its own within the group (default: one is made)")
	flag.DurationVar(&s.sessionTimeout, "session-timeout", 10*time.Second, "how soon others get its partitions if it dies")
	from := flag.String("from", "latest", "where to begin without a stored offset: earliest or latest")
	later := flag.String("from-new-partitions", "earliest", "the same for partitions that came later than the subscription")
	flag.StringVar(&s.listener, "listener", "PLAINTEXT", "the name of the brokers' listener to fetch from")
	flag.StringVar(&s.user, "user", "", "log in to the brokers (SASL PLAIN) with the password in KAFKA_PASSWORD")
	flag.Parse()
	known := map[string]bool{"earliest": true, "latest": true}
	if *bootstrap == "" || s.group == "" || s.topic == "" || !known[*from] || !known[*later] {
		flag.Usage()
		os.Exit(2)
	}
	s.bootstrap = strings.Split(*bootstrap, ",")
	s.fromStart, s.laterFromEnd = *from == "earliest", *later == "latest"
	key := make([]byte, 8)
	if _, err := rand.Read(key); err != nil {
		log.Fatal(err)
	}
	s.resumeKey = hex.EncodeToString(key)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	lines := json.NewEncoder(os.Stdout)
	c := &consumer{settings: s, hosts: s.bootstrap, handOut: func(r *kgo.Record) error {
		return lines.Encode(map[string]any{"topic": r.Topic, "partition": r.Partition, "offset": r.Offset, "value": string(r.Value)})
	}}
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
