package formats

import (
	"encoding/base64"
	"net/url"
	"testing"

	"golang.org/x/net/http/httpproxy"
)

type proxies struct {
	// URLs of services.
	URLs []string `json:"urls"`
	// Values of NO_PROXY, and the services that each excludes.
	Direct map[string][]string `json:"direct"`
	// Entries of NO_PROXY that exclude no service, which Belay refuses.
	Useless []string `json:"useless"`
	// Entries that Go understands and Belay refuses.
	Stricter []string `json:"stricter"`
	// Values of HTTP_PROXY: the address of the proxy, and the header Proxy-Authorization.
	Proxies map[string][]string `json:"proxies"`
}

func TestProxiesOfGo(t *testing.T) {
	check(t, "http/proxies.json", func(table *proxies) {
		direct := func(noProxy string) []string {
			found := []string{}
			for _, service := range table.URLs {
				if proxy(t, noProxy, "http://proxy:3128", service) == nil {
					found = append(found, service)
				}
			}
			return found
		}
		for rule := range table.Direct {
			table.Direct[rule] = direct(rule)
		}
		for _, rule := range table.Useless {
			if len(direct(rule)) != len(direct("")) {
				t.Errorf("%q excludes a service", rule)
			}
		}
		for _, rule := range table.Stricter {
			if len(direct(rule)) == len(direct("")) {
				t.Errorf("%q excludes no service", rule)
			}
		}
		for value := range table.Proxies {
			found := proxy(t, "", value, "http://service.example.org")
			header := ""
			if user := found.User; user != nil {
				password, _ := user.Password()
				header = "Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))
			}
			table.Proxies[value] = []string{found.Host, header}
		}
	})
}

// proxy is that of a service, or nil.
func proxy(t *testing.T, noProxy, value, service string) *url.URL {
	t.Helper()
	config := httpproxy.Config{HTTPProxy: value, HTTPSProxy: value, NoProxy: noProxy}
	to, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	found, err := config.ProxyFunc()(to)
	if err != nil {
		t.Fatal(err)
	}
	return found
}
