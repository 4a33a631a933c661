# file: src/store/db.c
# killer: lab A1
# what: a rollback commits
/^void db_rollback/,/^}/s/"ROLLBACK"/"COMMIT"/
