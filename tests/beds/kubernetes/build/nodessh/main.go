// nodessh is the SSH server of the bed's node: specs that stop the kubelet do so over SSH.
//
//	nodessh ADDRESS KEY_FILE
//
// It admits the owner of the private key in the file; without the file it makes a key and writes it
// there. Each command is run by a shell; there are no terminals, no files and no forwarding. The host
// key exists as long as the process.
package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"log"
	"net"
	"os"
	"os/exec"

	"golang.org/x/crypto/ssh"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: nodessh ADDRESS KEY_FILE")
	}
	config, err := configure(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(connection, config)
	}
}

func configure(keyFile string) (*ssh.ServerConfig, error) {
	admitted, err := clientKey(keyFile)
	if err != nil {
		return nil, err
	}
	host, _, err := newKey()
	if err != nil {
		return nil, err
	}
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, offered ssh.PublicKey) (*ssh.Permissions, error) {
			if !bytes.Equal(offered.Marshal(), admitted.PublicKey().Marshal()) {
				return nil, errors.New("not the key of this run")
			}
			return nil, nil
		},
	}
	config.AddHostKey(host)
	return config, nil
}

// clientKey reads the key that all nodes of a run share, or makes it.
func clientKey(file string) (ssh.Signer, error) {
	kept, err := os.ReadFile(file)
	if err == nil {
		return ssh.ParsePrivateKey(kept)
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	signer, private, err := newKey()
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return nil, err
	}
	return signer, os.WriteFile(file, pem.EncodeToMemory(block), 0o600)
}

func newKey() (ssh.Signer, ed25519.PrivateKey, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, nil, err
	}
	signer, err := ssh.NewSignerFromKey(private)
	return signer, private, err
}

func serve(connection net.Conn, config *ssh.ServerConfig) {
	defer connection.Close()
	_, channels, requests, err := ssh.NewServerConn(connection, config)
	if err != nil {
		log.Print(err)
		return
	}
	go ssh.DiscardRequests(requests)
	for offer := range channels {
		if offer.ChannelType() != "session" {
			offer.Reject(ssh.UnknownChannelType, "sessions only")
			continue
		}
		channel, requests, err := offer.Accept()
		if err != nil {
			log.Print(err)
			return
		}
		go session(channel, requests)
	}
}

func session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for request := range requests {
		if request.Type != "exec" {
			request.Reply(false, nil)
			continue
		}
		var asked struct{ Command string }
		if err := ssh.Unmarshal(request.Payload, &asked); err != nil {
			request.Reply(false, nil)
			continue
		}
		request.Reply(true, nil)
		code := run(asked.Command, channel)
		channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
		return
	}
}

func run(command string, channel ssh.Channel) uint32 {
	shell := exec.Command("/bin/sh", "-c", command)
	shell.Stdout, shell.Stderr = channel, channel.Stderr()
	err := shell.Run()
	log.Printf("%q: %v", command, shell.ProcessState)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return uint32(exit.ExitCode())
	default:
		return 255
	}
}
