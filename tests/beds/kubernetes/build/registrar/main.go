// registrar announces a CSI driver to the kubelet, as the official node-driver-registrar does, whose
// module the proxy does not serve.
//
//	registrar DRIVER_SOCKET KUBELET_PATH DIRECTORY
//
// DRIVER_SOCKET is the driver's socket here, KUBELET_PATH the same as the kubelet sees it, and DIRECTORY
// the one in which the kubelet looks for registrations. The registration ends with the process.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The driver starts with this process.
const driverTimeout = 2 * time.Minute

type registrar struct {
	registration.UnimplementedRegistrationServer
	driver, socket string
	refused        chan string
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.driver,
		Endpoint:          r.socket,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		log.Printf("the kubelet has registered %s", r.driver)
	} else {
		r.refused <- status.Error
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: registrar DRIVER_SOCKET KUBELET_PATH DIRECTORY")
	}
	driver, err := driverName(os.Args[1])
	if err != nil {
		log.Fatalf("%s: %v", os.Args[1], err)
	}
	if err := serve(driver, os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func driverName(socket string) (string, error) {
	connection, err := grpc.NewClient("unix://"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	waiting, cancel := context.WithTimeout(context.Background(), driverTimeout)
	defer cancel()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(waiting,
		&csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	return info.GetName(), err
}

// serve ends without an error by a signal only.
func serve(driver, socket, directory string) error {
	path := filepath.Join(directory, driver+"-reg.sock")
	// Of a process that was killed.
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	ours := &registrar{driver: driver, socket: socket, refused: make(chan string, 1)}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, ours)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM, syscall.SIGINT)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	// Closing the listener removes the socket, by which the kubelet sees that the driver has left.
	defer server.Stop()
	select {
	case <-ended:
		return nil
	case reason := <-ours.refused:
		return fmt.Errorf("the kubelet has refused %s: %s", driver, reason)
	case err := <-served:
		return err
	}
}
