// Command rights compares the sidecars' rights at the API server with their requests.
//
//	rights compare AUDIT ROLES       fails if a right was not used, or a request was refused
//	rights list ROLES                VERB RESOURCE of each right, once for all sidecars
//	rights without VERB RESOURCE ROLES   the roles, less that right
//	rights refused VERB RESOURCE <AUDIT  fails if no request for that was refused
//	rights plain <ROLES              the roles without the API server's additions
//
// AUDIT has a JSON object a line, ROLES is a List. A role belongs to the sidecar that its name ends
// with, or to all of them (leader); a resource is written as resource/subresource.group.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

func main() {
	arguments := os.Args[1:]
	want := map[string]int{"compare": 2, "list": 1, "without": 3, "refused": 2, "plain": 0}
	if len(arguments) == 0 || len(arguments)-1 != want[arguments[0]] {
		fail("see the head of main.go for how it is called")
	}
	command, arguments := arguments[0], arguments[1:]
	switch command {
	case "compare":
		compare(arguments[0], readRoles(arguments[1]))
	case "list":
		for _, line := range effective(readRoles(arguments[0])) {
			fmt.Println(line)
		}
	case "without":
		write(without(readRoles(arguments[2]), arguments[0], arguments[1]))
	case "refused":
		if !slices.ContainsFunc(requests(os.Stdin), func(r request) bool {
			return r.isRefused && r.verb == arguments[0] && r.resource == arguments[1]
		}) {
			os.Exit(1)
		}
	case "plain":
		write(plain(parse(os.Stdin)))
	}
}

func compare(audit string, roles roleList) {
	log, err := os.Open(audit)
	if err != nil {
		fail("%v", err)
	}
	defer log.Close()
	used := map[right]int{}
	var refused, unused int
	for _, request := range requests(log) {
		if request.isRefused {
			fmt.Fprintf(os.Stderr, "%s: refused: %s\n", request.right, request.message)
			refused++
		} else {
			used[request.right]++
		}
	}
	if len(used) == 0 {
		fail("%s has no request of a sidecar: is it of a run of the chart?", audit)
	}
	all := granted(roles)
	for _, one := range all {
		fmt.Printf("%s %d\n", one, used[one])
	}
	for _, one := range all {
		if used[one] == 0 {
			fmt.Fprintf(os.Stderr, "%s: never used; take it out of the chart, or let the scenario use it\n", one)
			unused++
		}
	}
	if refused+unused > 0 {
		fail("%d requests refused, %d rights not used", refused, unused)
	}
	fmt.Printf("%d rights, each used, and no request refused\n", len(all))
}

func readRoles(path string) roleList {
	file, err := os.Open(path)
	if err != nil {
		fail("%v", err)
	}
	defer file.Close()
	return parse(file)
}

func parse(from io.Reader) roleList {
	var list roleList
	if err := json.NewDecoder(from).Decode(&list); err != nil {
		fail("the roles: %v", err)
	}
	return list
}

func write(list roleList) {
	if err := json.NewEncoder(os.Stdout).Encode(list); err != nil {
		fail("%v", err)
	}
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "rights: "+format+"\n", arguments...)
	os.Exit(1)
}
