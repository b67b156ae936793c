package rota

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestEveryHotQueryUsesItsIndex asks SQLite how it would run each statement of
// the hot path. Literals stand for parameters where a partial index must be
// recognised either way.
func TestEveryHotQueryUsesItsIndex(t *testing.T) {
	t.Parallel()
	s := open(t, Config{})
	// With statistics of a full table as well as without any.
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			fill(t, s, "succeeded", "plan.done", 2000)
			fill(t, s, "pending", "plan.due", 2000)
			if _, err := s.DB().Exec("ANALYZE"); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range []struct{ query, want string }{
			{sqlNextPriority, "USING INDEX rota_jobs_due (kind=? AND priority<?)"},
			{sqlNextJobs, "USING INDEX rota_jobs_due (kind=? AND priority=?)"},
			{sqlAlone, "USING INDEX rota_jobs_alone"},
			{sqlCancelAsked, "USING INDEX rota_jobs_cancel (token=?)"},
			{sqlOrphans, "USING INDEX rota_jobs_running (token<?)"},
			{sqlJobBySeq, "USING INTEGER PRIMARY KEY (rowid=?)"},
			{sqlClaim, "USING INTEGER PRIMARY KEY (rowid=?)"},
			{sqlEndJob, "USING INTEGER PRIMARY KEY (rowid=?)"},
			{sqlStartAttempt, "USING PRIMARY KEY (job_id=? AND number=?)"},
			{sqlCloseAttempt, "USING PRIMARY KEY (job_id=? AND number=?)"},
			{sqlHadStarted, "USING PRIMARY KEY (job_id=? AND number=?)"},
			{sqlFindUnique, "USING INDEX rota_jobs_unique (kind=? AND unique_key=?)"},
			{sqlFront, "USING INDEX rota_jobs_front (kind=? AND group_key=?)"},
			{sqlMoveUp, "USING INDEX rota_jobs_line (kind=? AND group_key=?)"},
			{sqlHead, "USING INDEX rota_jobs_next (schedule=?)"},
			{sqlHeads, "USING INDEX rota_jobs_next"},
			{sqlOccurrenceLives, "USING INDEX rota_jobs_occurrence (schedule=?)"},
			{sqlPruneJobs, "USING INDEX rota_jobs_finished (state=? AND finished_at<?)"},
			{sqlAttempts, "USING PRIMARY KEY (job_id=?)"},
			{sqlLeaseToken, "USING PRIMARY KEY (name=?)"},
		} {
			plan := explainPlan(t, s, q.query)
			if !strings.Contains(plan, q.want) || strings.Contains(plan, "TEMP B-TREE") {
				t.Errorf("analyzed %v: plan of %s\n is: %s\nwant: %s, without a temporary b-tree", analyzed, q.query, plan, q.want)
			}
		}
	}
}

var parameters = regexp.MustCompile(`\$(\d+)`)

func explainPlan(t testing.TB, s *Scheduler, query string) string {
	t.Helper()
	n := 0
	for _, number := range parameters.FindAllStringSubmatch(query, -1) {
		k, _ := strconv.Atoi(number[1])
		n = max(n, k)
	}
	rows, err := s.DB().QueryContext(context.Background(), "EXPLAIN QUERY PLAN "+query, make([]any, n)...)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan = append(plan, detail)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "; ")
}

// fill inserts n plain jobs of the kind in one statement. Ended ones have an
// attempt each, as they would.
func fill(t testing.TB, s *Scheduler, state, kind string, n int) {
	t.Helper()
	_, err := s.DB().Exec(`
		WITH RECURSIVE i(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < $3)
		INSERT INTO rota_jobs (id, kind, state, args, run_at, idempotency_key, created_at, attempt, spent, started_at, finished_at, reason)
		SELECT $2 || n, $2, $1, '{"id":' || n || '}', n, $2 || n, n,
			$1 = 'succeeded', $1 = 'succeeded', iif($1 = 'succeeded', n, NULL), iif($1 = 'succeeded', n, NULL), iif($1 = 'succeeded', 'succeeded', NULL)
		FROM i`, state, kind, n)
	if err == nil && state == "succeeded" {
		_, err = s.DB().Exec(`
			INSERT INTO rota_attempts (job_id, number, runner, token, claimed_at, started_at, finished_at, outcome, class, decision, reason)
			SELECT id, 1, 'filled', 0, started_at, started_at, finished_at, 'succeeded', 'ok', 'succeeded', 'succeeded'
			FROM rota_jobs WHERE kind = $1`, kind)
	}
	if err != nil {
		t.Fatal(err)
	}
}
