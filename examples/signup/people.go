package main

// person signs up: how the provider treats the mail, attempt by attempt (the
// last answer repeats), what becomes of it on its way, and what must come of it.
type person struct {
	account string
	email   string
	story   string
	plan    []answer
	receipt string // what the provider reports later: delivered or bounced

	state    string   // of the event, in the end
	reason   string   // of the job's end
	outcomes []string // of the attempts, with their classes
}

var people = []person{
	{"acct-1", "ada.byron@mail.example", "the process dies between acceptance and record", []answer{takeIt}, "delivered",
		"delivered", "succeeded", []string{"unknown/process_died", "succeeded/probe"}},
	{"acct-2", "blaise.pascal@mail.example", "accepted, then delivered", []answer{takeIt}, "delivered",
		"delivered", "succeeded", []string{"succeeded/ok"}},
	{"acct-3", "charles.babbage@mail.example", "accepted, then bounced", []answer{takeIt}, "bounced",
		"bounced", "succeeded", []string{"succeeded/ok"}},
	{"acct-4", "dorothy.vaughan@mail.example", "provider unavailable, twice", []answer{unavailable, unavailable, takeIt}, "delivered",
		"delivered", "succeeded", []string{"retry/http_503", "retry/http_503", "succeeded/ok"}},
	{"acct-5", "edsger.dijkstra@mail.example", "no answer in time, and no mail", []answer{forgetAndHang, takeIt}, "delivered",
		"delivered", "succeeded", []string{"unknown/timeout", "succeeded/ok"}},
	{"acct-6", "frances.allen@mail.example", "no answer in time, but a mail", []answer{takeItAndHang}, "delivered",
		"delivered", "succeeded", []string{"unknown/timeout", "succeeded/probe"}},
	{"acct-7", "grace.hopper@mail.example", "address rejected", []answer{reject}, "",
		"failed", "permanent", []string{"failed/http_422"}},
	{"acct-8", "hedy.lamarr@mail.example", "provider unavailable, always", []answer{unavailable}, "",
		"failed", "exhausted", []string{"retry/http_503", "retry/http_503", "retry/http_503", "retry/http_503",
			"retry/http_503", "retry/http_503", "retry/http_503", "failed/http_503"}},
	{"acct-9", "ida.rhodes@mail.example", "to come again in an hour, which is too late", []answer{inAnHour}, "",
		"failed", "expired", []string{"failed/http_503"}},
}
