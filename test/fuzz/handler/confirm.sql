-- handler confirm
SELECT 1 FROM orders WHERE id = :aggregate_id;
-- expect rows 1 else goto stranger
UPDATE orders SET state = 'confirmed' WHERE id = :aggregate_id AND state = 'pending';
-- expect rows >= 1 else goto late
-- verdict done
-- label late
INSERT INTO history(event_id, order_id, what) VALUES (:event_id, :aggregate_id, 'late');
-- verdict late "order :aggregate_id was not pending"
-- label stranger
-- verdict early "no order :aggregate_id yet"
