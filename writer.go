package rota

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// writer is the one way to write. Whoever has something to write adds it to the
// queue and waits; one goroutine takes what has gathered and commits it as one
// transaction, while the next batch gathers (group commit, after DeWitt et al.,
// "Implementation Techniques for Main Memory Database Systems", 1984). Nobody
// waits for a timer: alone, a write is committed at once.
type writer struct {
	store     Store
	committed func() // called after each batch that holds a caller's write

	mu     sync.Mutex
	queue  []*write
	closed bool
	wake   chan struct{} // holds one token when there may be work

	done chan struct{} // closed when the goroutine has ended
}

// maxBatch bounds how long a batch keeps others from writing.
const maxBatch = 512

// write is one member of a batch.
type write struct {
	apply func(context.Context, Tx) error
	token int64 // not 0: a runner's own write, refused when the lease has moved on
	state atomic.Int32
	err   error
	done  chan struct{}
}

// States of a write. Whoever takes it from queued decides its fate: the writer,
// that it is applied, or the caller that it is not.
const (
	writeQueued int32 = iota
	writeApplied
	writeWithdrawn
)

func startWriter(store Store, committed func()) *writer {
	w := &writer{store: store, committed: committed, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go w.loop()
	return w
}

// do commits apply with the next batch. apply may be called twice, if a
// neighbour failed in the first try, and may still be at work when do returns
// because ctx has ended. So it writes through tx only, shares nothing that
// changes, and sets what it answers anew each time; the answer is read only if
// do returns nil.
func (w *writer) do(ctx context.Context, apply func(context.Context, Tx) error) error {
	return w.doFenced(ctx, 0, apply)
}

// doFenced is do for a runner's write: it fails with ErrLeaseLost when token is
// not the lease's any more.
func (w *writer) doFenced(ctx context.Context, token int64, apply func(context.Context, Tx) error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("nothing was written: %w", ended(ctx))
	}
	return w.wait(ctx, w.add(&write{apply: apply, token: token}))
}

// add queues the write. It does not block, and wait must follow.
func (w *writer) add(wr *write) *write {
	wr.done = make(chan struct{})
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		wr.err = ErrClosed
		close(wr.done)
		return wr
	}
	w.queue = append(w.queue, wr)
	w.signal()
	return wr
}

func (w *writer) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wait returns the write's end. If ctx ends first, the write is withdrawn or,
// when it is being committed already, left to its fate.
func (w *writer) wait(ctx context.Context, wr *write) error {
	select {
	case <-wr.done:
		return wr.err
	case <-ctx.Done():
	}
	if wr.state.CompareAndSwap(writeQueued, writeWithdrawn) {
		return fmt.Errorf("nothing was written: %w", ended(ctx))
	}
	select {
	case <-wr.done: // it was quicker than it seemed
		return wr.err
	default:
		return fmt.Errorf("%w: %w", ErrUncertain, ended(ctx))
	}
}

// ended says why ctx has ended. It matches the context package's error, and the
// cause if there is another.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// close commits what is queued, refuses what comes later, and returns when the
// goroutine has ended.
func (w *writer) close() {
	w.mu.Lock()
	w.closed = true
	w.signal()
	w.mu.Unlock()
	<-w.done
}

func (w *writer) loop() {
	defer close(w.done)
	var batch []*write
	for range w.wake {
		for {
			var closed bool
			if batch, closed = w.gather(batch); len(batch) == 0 {
				if closed {
					return
				}
				break
			}
			if !w.commit(batch, closed) {
				continue // it stays; whoever has left meanwhile is dropped
			}
			batch = nil
		}
	}
}

// gather fills the batch from the queue and drops what was withdrawn.
func (w *writer) gather(batch []*write) ([]*write, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(maxBatch-len(batch), len(w.queue))
	if batch == nil && n == len(w.queue) {
		batch, w.queue = w.queue, nil
	} else {
		batch = append(batch, w.queue[:n]...)
		w.queue = w.queue[n:]
	}
	kept := batch[:0]
	for _, wr := range batch {
		if wr.state.Load() != writeWithdrawn {
			kept = append(kept, wr)
		}
	}
	return kept, w.closed
}

// commit applies the batch and tells each member its end. It returns false,
// and nobody has been told, if another process kept the write lock; a writer
// that is closing does not wait for that.
func (w *writer) commit(batch []*write, closing bool) bool {
	err := w.store.Update(context.Background(), func(ctx context.Context, tx Tx) error {
		return applyAll(ctx, tx, batch, false)
	})
	if errors.Is(err, errMember) {
		// One member's failure must not be its neighbours': again, each with
		// a savepoint of its own.
		err = w.store.Update(context.Background(), func(ctx context.Context, tx Tx) error {
			return applyAll(ctx, tx, batch, true)
		})
	}
	if errors.Is(err, ErrBusy) {
		if !closing {
			return false
		}
		err = fmt.Errorf("%w, and nothing was written: %w", ErrClosed, err)
	}
	wakes := false
	for _, wr := range batch {
		if err != nil {
			wr.err = err
		}
		wakes = wakes || wr.token == 0 && wr.err == nil
		close(wr.done)
	}
	if wakes {
		w.committed()
	}
	return true
}

// errMember stops a batch whose member failed, so that it is applied again with
// savepoints.
var errMember = errors.New("a member of the batch failed")

// applyAll runs the members in order. With isolate, a member that fails is
// undone alone and its error kept for it.
func applyAll(ctx context.Context, tx Tx, batch []*write, isolate bool) error {
	var current int64 // the lease's token, read once if a member needs it
	read := false
	for _, wr := range batch {
		if !wr.state.CompareAndSwap(writeQueued, writeApplied) && wr.state.Load() == writeWithdrawn {
			continue
		}
		wr.err = nil
		if wr.token != 0 {
			if !read {
				err := tx.QueryRowContext(ctx, sqlLeaseToken).Scan(&current)
				if err != nil && !errors.Is(err, sql.ErrNoRows) {
					return fmt.Errorf("read the lease: %w", err)
				}
				read = true
			}
			if wr.token != current {
				wr.err = fmt.Errorf("token %d, the lease has %d: %w", wr.token, current, ErrLeaseLost)
				continue
			}
		}
		if !isolate {
			if err := wr.apply(ctx, tx); err != nil {
				return fmt.Errorf("%w: %w", errMember, err)
			}
			continue
		}
		if err := applyAlone(ctx, tx, wr); err != nil {
			return err
		}
	}
	return nil
}

func applyAlone(ctx context.Context, tx Tx, wr *write) error {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT member"); err != nil {
		return err
	}
	if wr.err = wr.apply(ctx, tx); wr.err != nil {
		if _, err := tx.ExecContext(ctx, "ROLLBACK TO member"); err != nil {
			return errors.Join(wr.err, err) // the database rolled everything back
		}
	}
	_, err := tx.ExecContext(ctx, "RELEASE member")
	return err
}
