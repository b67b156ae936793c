package rota_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/seed-f4ae5dd2/rota"
)

type Invoice struct{ ID int }

const SendInvoice rota.Kind[Invoice] = "invoice.send"

// tenLines are the README's.
func tenLines(ctx context.Context, path string, mailer mailPrinter) error {
	s, err := rota.Open(path, rota.Config{})
	if err != nil {
		return err
	}
	defer s.Close()
	rota.Handle(s, SendInvoice, func(ctx context.Context, job *rota.Job, inv Invoice) error {
		return mailer.Send(ctx, inv, job.IdempotencyKey)
	}, rota.Policy{})
	if _, err := SendInvoice.Enqueue(ctx, s, Invoice{ID: 42}, rota.EnqueueOptions{UniqueKey: "invoice:42"}); err != nil {
		return err
	}
	return s.Run(ctx) // competes for the lease, runs what is due until ctx is done
}

// mailPrinter stands for a program's own mailer.
type mailPrinter struct{ sent func() }

func (m mailPrinter) Send(_ context.Context, inv Invoice, idempotencyKey string) error {
	fmt.Println("invoice", inv.ID, "is on its way")
	m.sent()
	return nil
}

// A program opens its file, says which function does which kind of work,
// enqueues, and runs until it is told to end: here, by the first mail.
func Example() {
	dir, err := os.MkdirTemp("", "rota")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := tenLines(ctx, filepath.Join(dir, "app.db"), mailPrinter{sent: stop}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// invoice 42 is on its way
}
