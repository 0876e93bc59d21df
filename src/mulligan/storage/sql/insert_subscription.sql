-- Insert a subscription. No row: there is one with this id.
INSERT INTO {p}subscription ({subscription})
VALUES (:id, :declared, :name, :patterns, :owner, :batch_id, :filter, :form, :channel, :body, :endpoint, :after, :state,
        :reason, :version, :failures, :failing_since, :now, :created_by)
ON CONFLICT (id) DO NOTHING RETURNING id
