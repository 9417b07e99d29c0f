// Frames: four bytes of length, big-endian, then one JSON object (docs/socket-protocol.md).

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

const maxFrameBytes = 1 << 20

// offsets of the next record to read: topic -> partition -> offset.
type offsets map[string]map[string]int64

// frame has the fields of every message this consumer sends or understands; what it does not know it ignores.
type frame struct {
	V    int    `json:"v"`
	ID   int64  `json:"id"`
	Type string `json:"type"`

	// errors
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`

	// cluster-metadata and its answer
	WaitMs      int64        `json:"wait_ms,omitempty"`
	NotEpoch    *int64       `json:"not_epoch,omitempty"`
	Instances   []string     `json:"instances,omitempty"`
	Brokers     []broker     `json:"brokers,omitempty"`
	Coordinator *coordinator `json:"coordinator,omitempty"`

	// register and its answer
	Group            string         `json:"group,omitempty"`
	ConsumerID       string         `json:"consumer_id,omitempty"`
	Subscription     map[string]int `json:"subscription,omitempty"`
	SessionTimeoutMs int64          `json:"session_timeout_ms,omitempty"`
	Client           string         `json:"client,omitempty"`
	ResumeKey        string         `json:"resume_key,omitempty"`

	// ping
	Heard int64 `json:"heard,omitempty"`
	Done  int64 `json:"done,omitempty"`

	// commands: an object of lists for a stop-fetcher, of start points for a start-fetcher
	Partitions json.RawMessage `json:"partitions,omitempty"`

	Offsets offsets `json:"offsets,omitempty"`
}

// report is the request "unresolved". Unlike in a frame, an empty map is sent, too: it says that there is nothing (more).
type report struct {
	V       int                          `json:"v"`
	ID      int64                        `json:"id"`
	Type    string                       `json:"type"`
	Awaited map[string]map[string]string `json:"awaited"`
	Offsets offsets                      `json:"offsets"`
	Refused map[string]string            `json:"refused"`
}

type broker struct {
	ID        int64    `json:"id"`
	Endpoints []string `json:"endpoints"`
}

type coordinator struct {
	Instance int64  `json:"instance"`
	Epoch    int64  `json:"epoch"`
	Endpoint string `json:"endpoint"`
}

type startPoint struct {
	Offset int64 `json:"offset"`
	Stream int   `json:"stream"`
	Later  bool  `json:"later"` // it came into being after the group's subscription first covered its topic
}

func writeFrame(to io.Writer, f frame) error {
	f.V = 1
	return writeBody(to, f)
}

func writeBody(to io.Writer, message any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if len(body) > maxFrameBytes {
		return fmt.Errorf("a frame of %d bytes, more than %d", len(body), maxFrameBytes)
	}
	// One write: two would be two packets, and the second would wait for the first's acknowledgement.
	_, err = to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...))
	return err
}

func readFrame(from io.Reader) (frame, error) {
	var f frame
	var length uint32
	if err := binary.Read(from, binary.BigEndian, &length); err != nil {
		return f, err
	}
	if length > maxFrameBytes {
		return f, fmt.Errorf("a frame of %d bytes, more than %d", length, maxFrameBytes)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(from, body); err != nil {
		return f, err
	}
	if err := json.Unmarshal(body, &f); err != nil {
		return f, fmt.Errorf("not a frame: %w", err)
	}
	if f.V != 1 {
		return f, fmt.Errorf("version %d; this consumer speaks 1", f.V)
	}
	return f, nil
}
