// Partitions without a position: they delay no other, and nothing is skipped when they move ("unresolved" in
// docs/socket-protocol.md).

package main

import (
	"context"
	"errors"
	"log"
	"maps"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// trouble says why a partition has no position to fetch from.
type trouble int

const (
	none        trouble = iota
	startsAtEnd         // it begins at the first end that anybody lists
	outOfRange          // the broker no longer has its offset, or never had it
)

// lookEvery is how often the brokers are asked again.
const lookEvery = time.Second

// findings are the brokers' answers about partitions in trouble, and about topics that could not be read.
type findings struct {
	starts, ends kadm.ListedOffsets
	mayRead      []string
	err          error
}

// take hands out records, and notes which partitions cannot be read.
func (m *membership) take(fetched fetch) error {
	if err := m.handOutAll(fetched.records); err != nil {
		return err
	}
	for p, err := range fetched.faults {
		h := m.held[p]
		if h == nil {
			continue // it was stopped
		}
		var loss *kgo.ErrDataLoss
		switch {
		case errors.As(err, &loss): // the log was cut: franz-go goes on at the end of the epoch that it was in (KIP-320)
			log.Printf("the log of %s-%d was cut: continuing at %d instead of %d", p.topic, p.number, loss.ResetTo, h.next)
			h.next = min(h.next, loss.ResetTo)
			h.told = min(h.told, h.next)
		case errors.Is(err, kerr.OffsetOutOfRange):
			h.begun, h.trouble = false, outOfRange
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			m.refuse(p.topic, err)
		case h.reason != err.Error(): // no leader, or no answer: franz-go tries again
			h.reason = err.Error()
			log.Printf("cannot fetch %s-%d: %v", p.topic, p.number, err)
		}
	}
	return nil
}

func (m *membership) refuse(topic string, err error) {
	if _, known := m.refused[topic]; !known {
		m.refused[topic] = err.Error()
		log.Printf("may not read %s: %v", topic, err)
	}
}

// look asks the brokers, in the background, where the logs of partitions in trouble begin and end.
func (m *membership) look() {
	topics, refused := map[string]bool{}, []string{}
	for p, h := range m.held {
		if _, no := m.refused[p.topic]; h.trouble != none && !no {
			topics[p.topic] = true
		}
	}
	for topic := range m.refused {
		refused = append(refused, topic)
	}
	if m.looking || len(topics)+len(refused) == 0 || time.Now().Before(m.lookAt) {
		return
	}
	m.looking, m.lookAt = true, time.Now().Add(lookEvery)
	names, brokers, found := []string{}, kadm.NewClient(m.kafka), m.found
	for topic := range topics {
		names = append(names, topic)
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		var f findings
		if len(names) > 0 {
			if f.starts, f.err = brokers.ListStartOffsets(ctx, names...); f.err == nil || errors.As(f.err, new(*kadm.ShardErrors)) {
				f.ends, f.err = brokers.ListEndOffsets(ctx, names...)
			}
		}
		for _, topic := range refused {
			if found, err := brokers.Metadata(kadm.WithAuthorizedOps(ctx), topic); err == nil && mayRead(found.Topics[topic]) {
				f.mayRead = append(f.mayRead, topic)
			}
		}
		found <- f
	}()
}

func mayRead(topic kadm.TopicDetail) bool {
	if topic.Err != nil {
		return false
	}
	for _, right := range topic.AuthorizedOperations {
		if right == kadm.OpRead {
			return true
		}
	}
	return false
}

// resolve reports what was found. The group keeps the first end of a partition that starts there, so the coordinator's
// answer says where to begin; until somebody has listed that end, the elected instance tries, too.
func (m *membership) resolve(found findings) error {
	m.looking = false
	for _, topic := range found.mayRead {
		log.Printf("may read %s again", topic)
		delete(m.refused, topic)
	}
	awaited, ends := map[string]map[string]string{}, offsets{}
	goOn := offsets{}
	for p, h := range m.held {
		end, problem := offsetOf(found.ends, found.err, p)
		if h.trouble == none || found.ends == nil && found.err == nil {
			continue // it came into trouble after the question
		}
		if errors.Is(problem, kerr.TopicAuthorizationFailed) {
			m.refuse(p.topic, problem)
		}
		switch start, missing := offsetOf(found.starts, found.err, p); {
		case h.trouble == startsAtEnd && problem == nil:
			put(ends, p, end)
		case h.trouble == startsAtEnd && h.reason != problem.Error():
			log.Printf("cannot tell where %s-%d begins: %v", p.topic, p.number, problem)
			h.reason = problem.Error()
			put(awaited, p, h.reason)
		case h.trouble == outOfRange && problem == nil && missing == nil:
			put(goOn, p, m.after(p, h.next, start, end))
		}
	}
	if err := m.startAt(goOn); err != nil {
		return err
	}
	if len(awaited)+len(ends) == 0 && len(m.refused) == m.reported {
		return nil
	}
	m.reported = len(m.refused)
	m.asked++
	m.connection.SetWriteDeadline(time.Now().Add(m.timeout))
	return writeBody(m.connection, report{1, m.asked, "unresolved", awaited, ends, maps.Clone(m.refused)})
}

// after says where to go on when the broker has said that an offset is out of range. What retention has removed is gone:
// what is left is read. Otherwise the log was cut, and the user's setting decides.
func (m *membership) after(p partition, next, start, end int64) int64 {
	to, why := end, "the log ends before it"
	switch {
	case next < start:
		to, why = start, strconv.FormatInt(start-next, 10)+" unread records are gone"
	case m.fromStart:
		to = start
	}
	log.Printf("offset %d of %s-%d is out of range, %s: continuing at %d", next, p.topic, p.number, why, to)
	return to
}

// startAt begins partitions that were in trouble.
func (m *membership) startAt(positions offsets) error {
	starting, again := map[string]map[int32]kgo.Offset{}, map[string][]int32{}
	for topic, partitions := range positions {
		starting[topic] = map[int32]kgo.Offset{}
		for written, offset := range partitions {
			number, err := strconv.ParseInt(written, 10, 32)
			if err != nil {
				return err
			}
			h := m.held[partition{topic, int32(number)}]
			if h == nil || h.trouble == none {
				continue // it was stopped, or an earlier answer said so already
			}
			*h = held{next: offset, told: offset, begun: true}
			starting[topic][int32(number)] = kgo.NewOffset().At(offset)
			again[topic] = append(again[topic], int32(number))
			log.Printf("begins %s-%d at %d", topic, number, offset)
		}
	}
	if len(again) == 0 {
		return nil
	}
	return m.changing(func() {
		m.kafka.RemoveConsumePartitions(again)
		m.kafka.AddConsumePartitions(starting)
	})
}

func offsetOf(listed kadm.ListedOffsets, err error, p partition) (int64, error) {
	found, ok := listed.Lookup(p.topic, p.number)
	switch {
	case ok && found.Err != nil:
		return 0, found.Err
	case ok && found.Offset >= 0:
		return found.Offset, nil
	case err != nil:
		return 0, err
	}
	return 0, errors.New("no broker answered for it")
}

func put[V any](into map[string]map[string]V, p partition, value V) {
	if into[p.topic] == nil {
		into[p.topic] = map[string]V{}
	}
	into[p.topic][strconv.Itoa(int(p.number))] = value
}
