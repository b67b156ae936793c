package rota

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"
)

// childEnv names the role that the test binary plays, when a test has started
// it as a process of its own.
const childEnv = "ROTA_TEST_CHILD"

// childRoles are what such processes do, by role. A test file adds its own in
// an init function. A role ends by returning; it fails by childFatal.
var childRoles = map[string]func(args []string){}

// childInput are the lines that the test says to its child. It is closed when
// the test ends the child, and when the test's process is gone.
var childInput = make(chan string)

func TestMain(m *testing.M) {
	role, isChild := os.LookupEnv(childEnv)
	if !isChild {
		os.Exit(m.Run())
	}
	do := childRoles[role]
	if do == nil {
		childFatal(fmt.Errorf("there is no role %q", role))
	}
	go func() { // ends with the process
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			childInput <- lines.Text()
		}
		close(childInput)
	}()
	do(os.Args[1:])
}

// childFatal ends a child that can't go on.
func childFatal(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// childContext ends when the test ends the child.
func childContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the process at the latest
		for range childInput {
		}
		cancel()
	}()
	return ctx
}

// child is a process that plays a role. Its methods fail the test when it does
// not do what they wait for.
type child struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan string   // of its standard output; closed at the end of it
	gone   chan struct{} // closed when the process has ended
	err    error         // of its end, then
	stderr bytes.Buffer  // complete then
}

// startChild runs this test binary as a process that plays the role. It is
// killed at the end of the test, if it has not ended by then.
func startChild(t testing.TB, role string, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(self, args...), lines: make(chan string, 1024), gone: make(chan struct{})}
	// With the race detector, a process would sleep for a second at its end.
	c.cmd.Env = append(os.Environ(), childEnv+"="+role, "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
	c.cmd.Stderr = &c.stderr
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatalf("start child %s: %v", role, err)
	}
	go func() { // ends with the process
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			c.lines <- lines.Text()
		}
		close(c.lines)
		c.err = c.cmd.Wait()
		close(c.gone)
	}()
	t.Cleanup(c.kill)
	return c
}

// line is the next line that the child prints.
func (c *child) line() string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			<-c.gone
			c.t.Fatalf("the child has ended (%v) and printed no more\n%s", c.err, &c.stderr)
		}
		return line
	case <-time.After(30 * time.Second): // a safety net, not an expectation
		c.t.Fatal("the child prints nothing")
	}
	return ""
}

// expect waits until the child prints this line, and passes over others.
func (c *child) expect(want string) {
	c.t.Helper()
	for c.line() != want {
	}
}

// say gives the child a line.
func (c *child) say(line string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.stdin, line); err != nil {
		c.t.Fatalf("say %q to the child: %v", line, err)
	}
}

// end tells the child to end, and waits. It returns how it ended: nil after the
// role's return.
func (c *child) end() error {
	c.stdin.Close()
	return c.wait()
}

// wait waits for the child's own end.
func (c *child) wait() error {
	c.t.Helper()
	for {
		select {
		case <-c.gone:
			if c.err != nil {
				return fmt.Errorf("%w\n%s", c.err, &c.stderr)
			}
			return nil
		case _, ok := <-c.lines: // what nobody wants to read must not keep it
			if !ok {
				c.lines = nil
			}
		case <-time.After(30 * time.Second):
			c.t.Fatal("the child does not end")
		}
	}
}

// kill ends the child as a crash would, without a warning, and waits until it
// is gone.
func (c *child) kill() {
	c.stdin.Close()
	_ = c.cmd.Process.Kill() // it may have ended by itself
	if c.lines != nil {
		for range c.lines {
		}
	}
	<-c.gone
}
