UPDATE stock SET available = available - :paylod.qty WHERE a = ?;
-- expect rows x
-- expect rows 1
COMMIT;
UPDATE a SET b = 1; UPDATE x
-- label back
	UPDATE 库存 SET b = :evnt_id
-- expect rows 1 else goto rejct
-- expcet rows 1
UPDATE t SET b=1;
-- expect rows >= 1 else goto back
-- emit A for b :payload.x payload {"a": tru}
-- emit A for b payload {}
-- verdict don
-- label reject
-- verdict done x
