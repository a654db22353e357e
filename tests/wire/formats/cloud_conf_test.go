package formats

import (
	"fmt"
	"testing"

	"gopkg.in/gcfg.v1"
)

type file struct {
	Text string `json:"text"`
	// By section and key, without empty ones; nil if gcfg refuses the file.
	Values map[string]map[string]string `json:"values"`
}

type files struct {
	// Belay reads them as gcfg does.
	Same []*file `json:"same"`
	// Belay refuses them, and gcfg does not.
	Stricter []*file `json:"stricter"`
}

// Of the struct into which cinder-csi-plugin reads the file, a key of each type.
type conf struct {
	Global       map[string]*account
	BlockStorage struct {
		IgnoreZones bool `gcfg:"ignore-volume-az"`
	}
}

type account struct {
	AuthURL   string `gcfg:"auth-url"`
	Username  string
	Password  string
	Region    string
	UseClouds bool `gcfg:"use-clouds"`
}

func TestCloudConfOfGo(t *testing.T) {
	check(t, "backend/openstack/conf/gcfg.json", func(table *files) {
		for _, one := range append(table.Same, table.Stricter...) {
			one.Values = read(one.Text)
		}
		for _, one := range table.Stricter {
			if one.Values == nil {
				t.Errorf("gcfg refuses it, too: %q", one.Text)
			}
		}
	})
}

func read(text string) map[string]map[string]string {
	var found conf
	if gcfg.FatalOnly(gcfg.ReadStringInto(&found, text)) != nil {
		return nil
	}
	values := map[string]map[string]string{}
	set := func(section, key string, value any) {
		if text := fmt.Sprint(value); text != "" && text != "false" {
			if values[section] == nil {
				values[section] = map[string]string{}
			}
			values[section][key] = text
		}
	}
	for name, account := range found.Global {
		section := "global:" + name
		set(section, "auth-url", account.AuthURL)
		set(section, "username", account.Username)
		set(section, "password", account.Password)
		set(section, "region", account.Region)
		set(section, "use-clouds", account.UseClouds)
	}
	set("blockstorage:", "ignore-volume-az", found.BlockStorage.IgnoreZones)
	return values
}
