-- Why a job is tried again, and how. All three are JSON; NULL: nothing to say, which is the rule.
-- counts: counted failures of this generation, by class and by code. settings: what an escalation gave the next attempts.
ALTER TABLE {p}job ADD COLUMN counts TEXT;
ALTER TABLE {p}job ADD COLUMN settings TEXT;
-- judged: by which table, who disagreed, what its rule changed, and how the attempt after it differs.
ALTER TABLE {p}attempt ADD COLUMN judged TEXT;
