package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// This file makes processes of the company's program: what such a process does,
// and how the story starts it, stops it and kills it.

// instanceEnv makes this program an instance of the company's program, with the
// settings that it holds.
const instanceEnv = "TOWER_INSTANCE"

type settings struct {
	Name  string
	File  string
	Bank  string
	Night nightTime
}

// runInstance is the whole main function of the company's program. It works
// until its standard input ends, which is also how it ends with its parent.
func runInstance(text string) int {
	var set settings
	err := json.Unmarshal([]byte(text), &set)
	if err == nil {
		err = set.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tower:", err)
		return 1
	}
	return 0
}

func (set settings) run() (err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	a, err := openApp(ctx, set.File, set.Name, set.Bank, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.s.Close()) }()
	a.handle()
	if err := a.declare(set.Night); err != nil {
		return err
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil { // it ended, or said: begin
		return nil
	}
	go func() { // until the input ends, at the latest with the process
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return a.s.Run(ctx)
}

// instance is a process that runs the company's program.
type instance struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ready chan error    // one value: its first line, or why there is none
	ended chan struct{} // closed when it has ended
	exit  error         // how, once ended is closed
}

// start runs this program again, as an instance.
func (st *story) start(name string) (*instance, error) {
	fail := func(err error) (*instance, error) { return nil, fmt.Errorf("start %s: %w", name, err) }
	exe, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	text, err := json.Marshal(settings{Name: name, File: st.file(), Bank: st.bank.url, Night: st.night})
	if err != nil {
		return fail(err)
	}
	log, err := os.Create(filepath.Join(st.folder, name+".log"))
	if err != nil {
		return fail(err)
	}
	defer log.Close() // the process has its own descriptor
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), instanceEnv+"="+string(text))
	cmd.Stderr = log
	i := &instance{name: name, cmd: cmd, ready: make(chan error, 1), ended: make(chan struct{})}
	if i.stdin, err = cmd.StdinPipe(); err != nil {
		return fail(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return fail(err)
	}
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	go func() { // ends with the process, which close kills at the latest
		lines := bufio.NewReader(stdout)
		_, err := lines.ReadString('\n')
		i.ready <- err
		_, _ = io.Copy(io.Discard, lines)
		i.exit = cmd.Wait()
		close(i.ended)
	}()
	return i, nil
}

func (i *instance) waitReady(ctx context.Context) error {
	select {
	case err := <-i.ready:
		if err != nil {
			return fmt.Errorf("%s did not start, see its log: %w", i.name, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waited in vain until %s is ready: %w", i.name, context.Cause(ctx))
	}
}

func (i *instance) begin() error {
	if _, err := io.WriteString(i.stdin, "begin\n"); err != nil {
		return fmt.Errorf("tell %s to begin: %w", i.name, err)
	}
	return nil
}

// stop asks it to end, and waits until it has.
func (i *instance) stop(ctx context.Context) error {
	if i.cmd == nil {
		return errors.New("none of the instances holds the lease")
	}
	if err := i.stdin.Close(); err != nil {
		return fmt.Errorf("stop %s: %w", i.name, err)
	}
	select {
	case <-i.ended:
	case <-ctx.Done():
		return fmt.Errorf("waited in vain until %s ends: %w", i.name, context.Cause(ctx))
	}
	if i.exit != nil {
		return fmt.Errorf("%s did not end cleanly, see its log: %w", i.name, i.exit)
	}
	return nil
}

// kill is kill -9. It returns when the process is gone; one that has ended
// before is gone already.
func (i *instance) kill() error {
	if i.cmd == nil {
		return errors.New("none of the instances holds the lease")
	}
	if err := i.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", i.name, err)
	}
	<-i.ended
	return nil
}
