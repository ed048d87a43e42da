# Leaves a process behind that nobody waits for.
cat > /dev/null
setsid sleep 30 > /dev/null 2>&1 < /dev/null &
exit 0
