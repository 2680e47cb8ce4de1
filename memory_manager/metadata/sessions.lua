-- One transition of a session's page chain; see sessions.py.
-- KEYS: the session, when each session of this history ends, pages that nobody needs (with the time from which on).
-- Other sessions are touched only to end them; their keys have the same hash tag.
local session, endings, unneeded = KEYS[1], KEYS[2], KEYS[3]
local SESSIONS_ENDED_AT_ONCE, PAGES_DROPPED_AT_ONCE = 4, 256

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function chain(name)
  return name .. ':pages'
end

local function drop(pages)
  for _, page in ipairs(pages) do
    redis.call('ZADD', unneeded, now, page)
  end
end

local function finish(name)
  drop(redis.call('LRANGE', chain(name), 0, -1))
  redis.call('DEL', name, chain(name))
  redis.call('ZREM', endings, name)
end

local function is_over(name)
  local ending = redis.call('ZSCORE', endings, name)
  return not ending or tonumber(ending) <= now
end

local transitions = {}

-- The first `count` pages are reserved, the others named no more.
local function note(seconds, count, ...)
  for number, page in ipairs({...}) do
    if number <= tonumber(count) then
      redis.call('ZADD', unneeded, now + seconds * 1000, page)
    else
      redis.call('ZREM', unneeded, page)
    end
  end
end

function transitions.open(idle, uid, version, ...)
  note(...)
  local found = redis.call('HMGET', session, 'uid', 'version', 'length')
  if not found[1] or is_over(session) then
    return false
  end
  redis.call('ZADD', endings, now + idle, session)
  if found[1] ~= uid or found[2] ~= version then
    found[4] = redis.call('LRANGE', chain(session), 0, -1)
  end
  return found
end

function transitions.reserve(...)
  note(...)
end

function transitions.sweep(...)
  note(...)
  for _, other in ipairs(redis.call('ZRANGEBYSCORE', endings, '-inf', now, 'LIMIT', 0, SESSIONS_ENDED_AT_ONCE)) do
    finish(other)
  end
  return redis.call('ZRANGEBYSCORE', unneeded, '-inf', now, 'LIMIT', 0, PAGES_DROPPED_AT_ONCE)
end

function transitions.commit(idle, uid, version, keep, length, count, ...)
  local pages, unused = {}, {}
  for number, page in ipairs({...}) do
    table.insert(number <= tonumber(count) and pages or unused, page)
  end
  local found = redis.call('HMGET', session, 'uid', 'version')
  local begins_anew = version == '0' and (not found[1] or is_over(session))
  if not begins_anew and (found[1] ~= uid or found[2] ~= version) then
    return 'conflict'
  end
  for _, page in ipairs(pages) do
    if not redis.call('ZSCORE', unneeded, page) then
      return 'late'
    end
  end
  if begins_anew then
    finish(session)
  end
  drop(redis.call('LRANGE', chain(session), keep, -1))
  if keep == '0' then
    redis.call('DEL', chain(session))
  else
    redis.call('LTRIM', chain(session), 0, keep - 1)
  end
  for _, page in ipairs(pages) do
    redis.call('RPUSH', chain(session), page)
    redis.call('ZREM', unneeded, page)
  end
  for _, page in ipairs(unused) do
    redis.call('ZREM', unneeded, page)
  end
  redis.call('HSET', session, 'uid', uid, 'version', version + 1, 'length', length)
  redis.call('ZADD', endings, now + idle, session)
  return transitions.sweep()
end

return transitions[ARGV[1]](unpack(ARGV, 2))
