package main

import "github.com/seed-f4ae5dd2/rota"

// guest is somebody to invite: how the server treats the mail, attempt by
// attempt (the last treatment repeats), and what must come of it.
type guest struct {
	name  string
	story string
	plan  []treatment

	state      rota.State
	reason     string
	attempts   int
	delivered  int
	duplicates int
}

func (g guest) address() string { return g.name + "@guests.example" }

var guests = []guest{
	{"ann", "is reached at once", []treatment{accept},
		rota.Succeeded, "succeeded", 1, 1, 0},
	{"ben", "is behind a greylist: refused twice, for now", []treatment{refuseForNow, refuseForNow, accept},
		rota.Succeeded, "succeeded", 3, 1, 0},
	{"cleo", "does not exist: refused for good", []treatment{refuseForGood},
		rota.Dead, "permanent", 1, 0, 0},
	{"dora", "meets a server that falls silent before it has the message", []treatment{stallEarly, accept},
		rota.Succeeded, "succeeded", 2, 1, 0},
	{"emil", "meets a server that falls silent after it, and has lost it", []treatment{stallLate, accept},
		rota.Succeeded, "succeeded", 2, 1, 0},
	{"fritz", "is reached, but the server's answer is lost", []treatment{dropAnswer, accept},
		rota.Succeeded, "succeeded", 2, 1, 1},
	{"gita", "has a mailbox that is full for ever", []treatment{refuseFull},
		rota.Dead, "exhausted", 8, 0, 0},
}

// plan is the server's part of the guests.
func plan(guests []guest) map[string][]treatment {
	plan := make(map[string][]treatment)
	for _, g := range guests {
		plan[g.address()] = g.plan
	}
	return plan
}
