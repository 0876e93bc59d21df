-- Count what each rule classified, and what rules and policies in shadow mode would have decided.
SELECT rule, code, cls, verb, would_rule, would_code, would_cls, would_verb, count(*), max(ended_at)
FROM (SELECT attempt.rule, attempt.code, attempt.cls, attempt.verb, attempt.ended_at,
             CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,rule}' END AS would_rule,
             CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,code}' END AS would_code,
             CASE WHEN judged LIKE '%"shadow"%' THEN judged::json #>> '{shadow,class}' END AS would_cls,
             CASE WHEN judged LIKE '%"shadow_policy"%' THEN judged::json #>> '{shadow_policy,verb}' END AS would_verb
      FROM {p}attempt AS attempt JOIN {p}job AS job ON job.id = attempt.job_id
      WHERE attempt.job_id > :after AND attempt.ended_at >= :since AND attempt.rule IS NOT NULL
        AND job.kind NOT LIKE 'mulligan.%' AND (CAST(:kind AS TEXT) IS NULL OR job.kind = :kind)) AS judged
GROUP BY rule, code, cls, verb, would_rule, would_code, would_cls, would_verb ORDER BY 9 DESC LIMIT :limit
