// Package storagee2e is the part of Kubernetes' end-to-end suite that tests a CSI driver by its
// description, without the thousands of specs around it: a tenth of the packages.
package storagee2e

import (
	"flag"
	"log"
	"os"
	"testing"

	"k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/e2e/feature"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/metrics/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	_ "k8s.io/kubernetes/test/e2e/storage/external"
	manifests "k8s.io/kubernetes/test/e2e/testing-manifests"
	_ "k8s.io/kubernetes/test/utils/format"
)

func TestMain(m *testing.M) {
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	config.CopyFlags(config.Flags, flag.CommandLine)
	flag.Parse()
	// A word without a dash ends the flags, and the specs after it would run with half of them.
	if rest := flag.Args(); len(rest) > 0 {
		log.Fatalf("storagee2e takes flags only, found %q", rest)
	}
	testfiles.AddFileSource(manifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	os.Exit(m.Run())
}

func TestStorage(t *testing.T) {
	e2e.RunE2ETests(t)
}
