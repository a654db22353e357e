package wire

import (
	"fmt"
	"maps"
	"slices"
)

// Differences lists, sorted, whatever one side has and the other has not or has otherwise.
func Differences(official, ours Facts) []string {
	var found []string
	for name, fact := range official {
		switch other, known := ours[name]; {
		case !known:
			found = append(found, fmt.Sprintf("missing: %s: %s", name, fact))
		case other != fact:
			found = append(found,
				fmt.Sprintf("differs: %s: official (%s), ours (%s)", name, fact, other))
		}
	}
	for name, fact := range ours {
		if _, known := official[name]; !known {
			found = append(found, fmt.Sprintf("added: %s: %s", name, fact))
		}
	}
	slices.Sort(found)
	return found
}

// Judge takes the exceptions from the differences: what remains is wrong, and so is an exception
// that no difference needs any longer.
func Judge(differences, exceptions []string) (wrong, unused []string) {
	return without(differences, exceptions), without(exceptions, differences)
}

func without(list, others []string) []string {
	taken := map[string]bool{}
	for _, other := range others {
		taken[other] = true
	}
	rest := map[string]bool{}
	for _, entry := range list {
		if !taken[entry] {
			rest[entry] = true
		}
	}
	return slices.Sorted(maps.Keys(rest))
}
