package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
)

// request is one that a sidecar made of the API server.
type request struct {
	right
	isRefused bool
	message   string
}

// event is a line of the audit log.
type event struct {
	Verb      string
	UserAgent string
	ObjectRef *struct{ APIGroup, Resource, Subresource string }

	ResponseStatus *struct {
		Code    int
		Message string
	}
}

func requests(log io.Reader) []request {
	var found []request
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var one event
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			fail("the audit log: %v", err)
		}
		sidecar, _, _ := strings.Cut(one.UserAgent, "/")
		// Without an object it is a discovery query, which all may send.
		if !strings.HasPrefix(sidecar, "csi-") || one.ObjectRef == nil {
			continue
		}
		resource := one.ObjectRef.Resource
		if one.ObjectRef.Subresource != "" {
			resource += "/" + one.ObjectRef.Subresource
		}
		made := request{right: right{sidecar, one.Verb, qualified(resource, one.ObjectRef.APIGroup)}}
		if status := one.ResponseStatus; status != nil {
			made.isRefused, made.message = status.Code == http.StatusForbidden, status.Message
		}
		found = append(found, made)
	}
	if err := lines.Err(); err != nil {
		fail("the audit log: %v", err)
	}
	return found
}
