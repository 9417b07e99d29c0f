// The algorithm: find the coordinator, register, carry out commands, and after a lost connection start over.

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// refused is an error that trying again does not mend.
type refused struct{ code, message string }

func (r refused) Error() string { return r.code + ": " + r.message }

// The waits of docs/socket-protocol.md, "Losing the membership". This consumer never resumes: a lost connection ends its
// membership, so no lease is left that would make them shorter.
const (
	connectWait  = 3 * time.Second
	metadataWait = 2 * time.Second
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

type consumer struct {
	settings
	hosts    []string
	missed   *coordinator // one that fell silent or could not be reached: another one is asked for
	brokers  []string
	handOut  func(*kgo.Record) error
	kafka    *kgo.Client
	fetched  chan fetch
	stopPoll context.CancelFunc
}

// run does the lost-connection procedure again and again until the context ends or it is refused for good.
func (c *consumer) run(ctx context.Context) error {
	pause := firstPause
	for ctx.Err() == nil {
		found, err := c.findCoordinator()
		if err == nil {
			var m *membership
			c.missed = found // unless it answers
			if m, err = c.register(found.Endpoint); err == nil {
				pause, c.missed = firstPause, nil
				err = m.carryOut(ctx)
				close(m.over)
				m.connection.Close()
				c.closeFetchers()
				if err == nil {
					return nil // it has left
				}
				if errors.Is(err, os.ErrDeadlineExceeded) { // frozen, perhaps: ask the others at once, and it last
					log.Printf("the coordinator is silent: %v", err)
					c.missed = found
					c.askLast(found.Endpoint)
					continue
				}
			}
		}
		var no refused
		if errors.As(err, &no) {
			switch no.code {
			case "duplicate-consumer", "slow-down", "unavailable", "not-coordinator", "membership-lost", "shutting-down":
				c.missed = nil // it has answered
			default:
				return err
			}
		}
		log.Printf("starting over: %v", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(pause*2, longestPause)
	}
	return nil
}

// askLast moves a host to the end of the round.
func (c *consumer) askLast(host string) {
	for i, known := range c.hosts {
		if known == host {
			c.hosts = append(append(c.hosts[:i:i], c.hosts[i+1:]...), host)
			return
		}
	}
}

// findCoordinator asks the known hosts, one after the other, who coordinates and where the brokers are.
func (c *consumer) findCoordinator() (*coordinator, error) {
	problem := errors.New("no host is known")
	for range c.hosts {
		host := c.hosts[0]
		c.hosts = append(c.hosts[1:], host)
		question, wait := frame{ID: 1, Type: "cluster-metadata"}, connectWait
		if c.missed != nil {
			question.WaitMs, question.NotEpoch = metadataWait.Milliseconds(), &c.missed.Epoch
			wait += metadataWait
		}
		answer, err := askOnce(host, question, wait)
		if err != nil {
			problem = fmt.Errorf("%s: %w", host, err)
			continue
		}
		for _, known := range answer.Instances {
			if !contains(c.hosts, known) {
				c.hosts = append(c.hosts, known)
			}
		}
		c.brokers = nil
		for _, b := range answer.Brokers {
			for _, endpoint := range b.Endpoints {
				if address, ok := strings.CutPrefix(endpoint, c.listener+"://"); ok {
					c.brokers = append(c.brokers, address)
				}
			}
		}
		if answer.Coordinator != nil && answer.Coordinator.Endpoint != "" && len(c.brokers) > 0 {
			return answer.Coordinator, nil
		}
		problem = fmt.Errorf("%s knows of no coordinator or no broker", host)
	}
	return nil, problem
}

func contains(all []string, one string) bool {
	for _, each := range all {
		if each == one {
			return true
		}
	}
	return false
}

func askOnce(address string, question frame, wait time.Duration) (frame, error) {
	connection, err := net.DialTimeout("tcp", address, connectWait)
	if err != nil {
		return frame{}, err
	}
	defer connection.Close()
	if err = connection.SetDeadline(time.Now().Add(wait)); err == nil {
		err = writeFrame(connection, question)
	}
	if err != nil {
		return frame{}, err
	}
	return answerIn(connection)
}

func answerIn(connection net.Conn) (frame, error) {
	answer, err := readFrame(connection)
	if err == nil && answer.Type == "error" {
		err = refused{answer.Code, answer.Message}
	}
	return answer, err
}

// held is what is known of a partition this consumer fetches.
type held struct {
	next    int64 // of the next record to hand out
	told    int64 // what the coordinator was last told
	begun   bool
	trouble trouble // why it has no position to fetch from
	reason  string  // as last reported for the group
}

type partition struct {
	topic  string
	number int32
}

// membership is one registration, on one connection.
type membership struct {
	*consumer
	connection  net.Conn
	frames      chan frame
	over        chan struct{} // closed when nobody receives frames any more
	readFailure error
	asked       int64 // the last id of our own requests
	provenFrom  time.Time
	timeout     time.Duration
	pings       map[int64]time.Time // answered pings, by id: when the answer was sent
	held        map[partition]*held
	refused     map[string]string // topics that it may not read, with the reason
	reported    int               // how many of them the coordinator knows
	found       chan findings
	looking     bool
	lookAt      time.Time
}

func (c *consumer) register(address string) (*membership, error) {
	connection, err := net.DialTimeout("tcp", address, connectWait)
	if err != nil {
		return nil, err
	}
	sent := time.Now()
	err = writeFrame(connection, frame{
		ID: 1, Type: "register", Group: c.group, ConsumerID: c.consumerID, Subscription: map[string]int{c.topic: 1},
		SessionTimeoutMs: c.sessionTimeout.Milliseconds(), ResumeKey: c.resumeKey, Client: "go-consumer/1",
	})
	var answer frame
	if err == nil {
		connection.SetReadDeadline(time.Now().Add(c.sessionTimeout / 2))
		answer, err = answerIn(connection)
	}
	if err == nil {
		err = c.openFetchers()
	}
	if err != nil {
		connection.Close()
		return nil, err
	}
	c.consumerID = answer.ConsumerID
	m := &membership{
		consumer: c, connection: connection, frames: make(chan frame), over: make(chan struct{}), asked: 1, provenFrom: sent,
		timeout: c.sessionTimeout, pings: map[int64]time.Time{}, held: map[partition]*held{},
		refused: map[string]string{}, found: make(chan findings, 1),
	}
	go m.read()
	log.Printf("registered as %s with %s", c.consumerID, address)
	return m, nil
}

// read is the blocking read loop. Nothing heard for half the session timeout is a lost connection.
func (m *membership) read() {
	defer close(m.frames)
	buffered := bufio.NewReader(m.connection)
	for {
		m.connection.SetReadDeadline(time.Now().Add(m.timeout / 2))
		f, err := readFrame(buffered)
		if err != nil {
			m.readFailure = err
			return
		}
		select {
		case m.frames <- f:
		case <-m.over:
			return
		}
	}
}

// mine says whether the coordinator certainly still counts this consumer among the living.
func (m *membership) mine() bool { return time.Since(m.provenFrom) < m.timeout*9/10 }

// carryOut carries out commands and hands out records, one after the other, until it has left (nil) or the membership is lost.
func (m *membership) carryOut(ctx context.Context) error {
	watch := time.NewTicker(m.timeout / 20)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return m.leave()
		case f, open := <-m.frames:
			if !open {
				return fmt.Errorf("lost the connection: %w", m.readFailure)
			}
			if err := m.handle(ctx, f); err != nil {
				return err
			}
		case fetched := <-m.fetched:
			if err := m.take(fetched); err != nil {
				return err
			}
		case found := <-m.found:
			if err := m.resolve(found); err != nil {
				return err
			}
		case <-watch.C:
		}
		m.look()
		if !m.mine() {
			return errors.New("the coordinator was not heard of for so long that others may have the partitions")
		}
	}
}

func (m *membership) handOutAll(records []*kgo.Record) error {
	for _, r := range records {
		h := m.held[partition{r.Topic, r.Partition}]
		if h == nil || !h.begun || r.Offset < h.next || !m.mine() {
			continue // fetched before it was stopped, or not to be read yet
		}
		if err := m.handOut(r); err != nil {
			return err
		}
		h.next = r.Offset + 1
	}
	return nil
}

func (m *membership) handle(ctx context.Context, f frame) error {
	switch f.Type {
	case "ping":
		return m.handlePing(f)
	case "stop-fetcher":
		return m.handleStopFetcher(f)
	case "start-fetcher":
		return m.handleStartFetcher(f)
	case "answer":
		return m.startAt(f.Offsets) // the only question that it asks besides "leave" is "unresolved"
	case "error":
		return refused{f.Code, f.Message}
	}
	return fmt.Errorf("the coordinator sent a %q, which this consumer does not expect", f.Type)
}

func (m *membership) answer(id int64, consumed offsets) error {
	m.connection.SetWriteDeadline(time.Now().Add(m.timeout))
	return writeFrame(m.connection, frame{ID: id, Type: "answer", Offsets: consumed})
}

func (m *membership) handlePing(f frame) error {
	for id, sent := range m.pings {
		if id <= f.Heard {
			if sent.After(m.provenFrom) {
				m.provenFrom = sent
			}
			delete(m.pings, id)
		}
	}
	m.pings[f.ID] = time.Now()
	return m.answer(f.ID, m.consumed(nil))
}

// consumed is what is to be told of these partitions, or of all: nothing twice, for an answer that gets lost ends the
// connection anyway.
func (m *membership) consumed(only []partition) offsets {
	found := offsets{}
	tell := func(p partition, h *held) {
		if h.next > h.told {
			put(found, p, h.next)
			h.told = h.next
		}
	}
	if only == nil {
		for p, h := range m.held {
			tell(p, h)
		}
	}
	for _, p := range only {
		if h := m.held[p]; h != nil {
			tell(p, h)
		}
	}
	return found
}

func (m *membership) handleStopFetcher(f frame) error {
	var topics map[string][]int32
	if err := json.Unmarshal(f.Partitions, &topics); err != nil {
		return err
	}
	var stopped []partition
	for topic, numbers := range topics {
		for _, number := range numbers {
			stopped = append(stopped, partition{topic, number})
		}
	}
	if err := m.changing(func() { m.kafka.RemoveConsumePartitions(topics) }); err != nil {
		return err
	}
	last := m.consumed(stopped)
	for _, p := range stopped {
		delete(m.held, p)
	}
	log.Printf("stopped %d partitions", len(stopped))
	return m.answer(f.ID, last)
}

// handleStartFetcher acknowledges every start at once: a partition whose end nobody can tell delays no other.
func (m *membership) handleStartFetcher(f frame) error {
	var topics map[string]map[string]startPoint
	if err := json.Unmarshal(f.Partitions, &topics); err != nil {
		return err
	}
	starting := map[string]map[int32]kgo.Offset{}
	for topic, points := range topics {
		starting[topic] = map[int32]kgo.Offset{}
		for written, point := range points {
			number, err := strconv.ParseInt(written, 10, 32)
			if err != nil {
				return err
			}
			h := &held{next: max(point.Offset, 0), told: max(point.Offset, 0), begun: true}
			switch {
			case point.Offset >= 0:
				starting[topic][int32(number)] = kgo.NewOffset().At(h.next)
			case m.fromStart || (point.Later && !m.laterFromEnd):
				starting[topic][int32(number)] = kgo.NewOffset().AtStart()
			default: // the group keeps where it begins before anything of it is read
				h.begun, h.trouble = false, startsAtEnd
			}
			m.held[partition{topic, int32(number)}] = h
		}
	}
	if err := m.changing(func() { m.kafka.AddConsumePartitions(starting) }); err != nil {
		return err
	}
	log.Printf("started partitions %s", f.Partitions)
	m.lookAt = time.Time{}
	return m.answer(f.ID, nil)
}

// changing changes what is fetched while nothing is on its way from the fetcher: a batch from before a partition was
// stopped must not be taken for one from after it was started again.
func (m *membership) changing(what func()) error {
	m.stopPoll()
	for fetched := range m.fetched {
		if err := m.take(fetched); err != nil {
			return err
		}
	}
	what()
	m.poll()
	return nil
}

// leave commits what was handed out and ends the registration, and waits for the answer.
func (m *membership) leave() error {
	m.asked++
	last := offsets{}
	for p, h := range m.held {
		if h.next > 0 { // not if it has no position yet
			put(last, p, h.next)
		}
	}
	m.connection.SetWriteDeadline(time.Now().Add(m.timeout))
	if err := writeFrame(m.connection, frame{ID: m.asked, Type: "leave", Offsets: last}); err != nil {
		return nil // its session timeout will end it
	}
	for {
		select {
		case f, open := <-m.frames:
			if !open || (f.Type == "answer" && f.ID == m.asked) || f.Type == "error" {
				log.Print("left")
				return nil
			}
		case <-time.After(m.timeout):
			return nil
		}
	}
}

func (c *consumer) openFetchers() error {
	options := []kgo.Opt{
		kgo.SeedBrokers(c.brokers...), kgo.FetchMaxWait(250 * time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // where to go on is decided here: see resolve
		kgo.KeepRetryableFetchErrors(),              // a partition without a leader is told, too
	}
	if c.user != "" {
		options = append(options, kgo.SASL(plain.Auth{User: c.user, Pass: os.Getenv("KAFKA_PASSWORD")}.AsMechanism()))
	}
	kafka, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	c.kafka = kafka
	c.poll()
	return nil
}

// fetch is what came together: records, and the partitions that could not be fetched.
type fetch struct {
	records []*kgo.Record
	faults  map[partition]error
}

// poll fetches in the background until stopPoll is called; then fetched is closed.
func (c *consumer) poll() {
	ctx, stop := context.WithCancel(context.Background())
	fetched := make(chan fetch)
	c.stopPoll, c.fetched = stop, fetched
	go func() {
		defer close(fetched)
		for ctx.Err() == nil {
			fetches := c.kafka.PollRecords(ctx, 500)
			one := fetch{fetches.Records(), map[partition]error{}}
			fetches.EachError(func(topic string, number int32, err error) {
				if ctx.Err() == nil {
					one.faults[partition{topic, number}] = err
				}
			})
			if len(one.records)+len(one.faults) > 0 {
				fetched <- one
			}
		}
	}()
}

func (c *consumer) closeFetchers() {
	c.stopPoll()
	for range c.fetched { // what was fetched and not handed out is dropped
	}
	c.kafka.Close()
}
