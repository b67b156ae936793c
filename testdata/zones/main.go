// Command zones says when a job for seven in the morning in Berlin would run.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/seed-f4ae5dd2/rota"
)

func main() {
	spec, err := rota.ParseSpec("0 7 * * *", rota.SpecOptions{Zone: "Europe/Berlin"})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	next, _ := spec.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	fmt.Println(next.UTC().Format(time.RFC3339))
}
