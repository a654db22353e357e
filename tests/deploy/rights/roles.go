package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The Role for the reports of room is the provisioner's too.
var sidecars = map[string]string{
	"provisioner": "csi-provisioner",
	"capacity":    "csi-provisioner",
	"attacher":    "csi-attacher",
	"resizer":     "csi-resizer",
	"snapshotter": "csi-snapshotter",
}

// right is one verb on one resource, for one sidecar.
type right struct {
	sidecar, verb, resource string
}

func (r right) String() string {
	return fmt.Sprintf("%-15s %-6s %s", r.sidecar, r.verb, r.resource)
}

type roleList struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Items      []role `json:"items"`
}

type role struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Rules      []rule         `json:"rules"`
}

type rule struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
	Verbs     []string `json:"verbs"`
}

// The roles of Belay's own programs, which the tests of the objects have with an API server.
var programs = []string{"objects", "store"}

func (r role) name() string {
	name, _ := r.Metadata["name"].(string)
	return name
}

// part is the last part of the name.
func (r role) part() string {
	return r.name()[strings.LastIndex(r.name(), "-")+1:]
}

func granted(list roleList) []right {
	var rights []right
	holders := map[string]bool{}
	for _, one := range list.Items {
		if sidecar, ok := sidecars[one.part()]; ok {
			holders[sidecar] = true
		}
	}
	for _, one := range list.Items {
		of := []string{sidecars[one.part()]}
		switch {
		case slices.Contains(programs, one.part()):
			continue
		case one.part() == "leader":
			// Each sidecar has its own lease.
			of = slices.Collect(maps.Keys(holders))
		case of[0] == "":
			fail("whose role is %s?", one.name())
		}
		for _, rule := range one.Rules {
			for _, verb := range rule.Verbs {
				for _, sidecar := range of {
					rights = append(rights, right{sidecar, verb, rule.resource()})
				}
			}
		}
	}
	slices.SortFunc(rights, func(a, b right) int { return strings.Compare(a.String(), b.String()) })
	return rights
}

// resource is the only one of the rule: the chart has a rule for each, so that each has its reason.
func (r rule) resource() string {
	if len(r.APIGroups) != 1 || len(r.Resources) != 1 {
		fail("a rule for %v of %v: write a rule for each", r.Resources, r.APIGroups)
	}
	return qualified(r.Resources[0], r.APIGroups[0])
}

func qualified(resource, group string) string {
	if group == "" {
		return resource
	}
	return resource + "." + group
}

// effective is the union of the sidecars' rights: they share a service account.
func effective(list roleList) []string {
	var lines []string
	for _, one := range granted(list) {
		lines = append(lines, one.verb+" "+one.resource)
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// without takes a verb away from every sidecar, and from the programs that share their account.
func without(list roleList, verb, resource string) roleList {
	found := false
	for _, one := range list.Items {
		for at := range one.Rules {
			rule := &one.Rules[at]
			if rule.resource() == resource && slices.Contains(rule.Verbs, verb) {
				rule.Verbs = slices.DeleteFunc(rule.Verbs, func(other string) bool { return other == verb })
				found = true
			}
		}
	}
	if !found {
		fail("no role may %s %s", verb, resource)
	}
	return plainRules(list)
}

// plainRules leaves out rules without a verb, which the API server refuses.
func plainRules(list roleList) roleList {
	for at := range list.Items {
		one := &list.Items[at]
		one.Rules = slices.DeleteFunc(one.Rules, func(rule rule) bool { return len(rule.Verbs) == 0 })
	}
	return list
}

// plain leaves out what would make the API server take the roles for out of date.
func plain(list roleList) roleList {
	for _, one := range list.Items {
		for _, key := range []string{"resourceVersion", "uid", "creationTimestamp", "managedFields"} {
			delete(one.Metadata, key)
		}
	}
	return list
}
