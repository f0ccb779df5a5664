#!/usr/bin/env python3
"""When schedules fire around the changes of the clock, worked out independently: by Python's zoneinfo, wall minute by wall minute.

usage: fire_times.py [--check | --write]     compares with, or writes, fire_times.json beside this

For each zone, pattern and DST policy: how many times in each year from 2015 to 2024, and a hash over all of them.
"""

import hashlib
import json
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

FILE = Path(__file__).with_name("fire_times.json")
FIRST, LAST = 2015, 2024
MINUTE = timedelta(minutes=1)

ZONES = [
    "Australia/Melbourne",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/New_York",
    "Europe/London",
    "America/Sao_Paulo",
]
PATTERNS = [
    "30 2 * * *",
    "30 1 * * *",
    "0 0 * * *",
    "45 1 * * SUN",
    "15 2 * 3,4,10,11 *",
    "*/20 0-3 * 2,3,4,10,11 *",
    "0 3 1 * *",
    "5 * * 2,3,4,10,11 *",
    "59 23 28-31 * *",
    "0,30 1,2 * * 6,0",
]
POLICIES = ["once", "skip", "twice"]
DAYS = {"SUN": "0", "MON": "1", "TUE": "2", "WED": "3", "THU": "4", "FRI": "5", "SAT": "6"}


def values(field, low, high):
    """The numbers that a field of a pattern allows."""
    allowed = set()
    for piece in field.split(","):
        span, _, step = piece.partition("/")
        if span == "*":
            first, last = low, high
        else:
            first, _, last = span.partition("-")
            first, last = int(first), int(last or first)
        allowed.update(range(first, last + 1, int(step or 1)))
    return allowed


def walls(pattern):
    """All wall clock minutes, and some around the range, that fit."""
    minute, hour, day, month, weekday = pattern.split()
    minutes, hours = sorted(values(minute, 0, 59)), sorted(values(hour, 0, 23))
    days, months = values(day, 1, 31), values(month, 1, 12)
    weekdays = {number % 7 for number in values(DAYS.get(weekday, weekday), 0, 7)}
    at = datetime(FIRST - 1, 12, 30)
    while at < datetime(LAST + 1, 1, 3):
        by_day, by_weekday = at.day in days, at.isoweekday() % 7 in weekdays
        either = (by_day or by_weekday) if "*" not in (day, weekday) else (by_day and by_weekday)
        if at.month in months and either:
            yield from (at.replace(hour=hour, minute=minute) for hour in hours for minute in minutes)
        at += timedelta(days=1)


def instants(wall, zone):
    """The points in time at which the clock shows this, in order."""
    shown = {wall.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1)}
    return sorted(at for at in shown if at.astimezone(zone).replace(tzinfo=None, fold=0) == wall)


def after_gap(wall, zone):
    """The first minute at which the clock shows a later time than one that it leaves out."""
    at = wall.replace(tzinfo=timezone.utc) - timedelta(days=2)
    while at.astimezone(zone).replace(tzinfo=None) < wall:
        at += timedelta(hours=1)
    while at.astimezone(zone).replace(tzinfo=None) > wall:
        at -= MINUTE
    return at + MINUTE


def fire_times(pattern, zone, policy):
    """The points in time at which a schedule fires, in order."""
    every_hour = values(pattern.split()[1], 0, 23) == set(range(24))
    times = set()
    for wall in walls(pattern):
        shown = instants(wall, zone)
        if every_hour or policy == "twice":
            times.update(shown)
        else:
            times.update(shown[:1])
        if not shown and not every_hour and policy != "skip":
            times.add(after_gap(wall, zone))
    first, last = (datetime(year, 1, 1, tzinfo=timezone.utc) for year in (FIRST, LAST + 1))
    return sorted(time for time in times if first <= time < last)


def row(pattern, zone, policy):
    times = fire_times(pattern, ZoneInfo(zone), policy)
    text = "".join(f"{int(time.timestamp())}\n" for time in times)
    years = Counter(time.year for time in times)
    return {
        "zone": zone,
        "pattern": pattern,
        "dst": policy,
        "years": [years[year] for year in range(FIRST, LAST + 1)],
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }


def table():
    rows = [row(pattern, zone, policy) for zone in ZONES for pattern in PATTERNS for policy in POLICIES]
    return "[\n" + ",\n".join(json.dumps(each) for each in rows) + "\n]\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(table())
    elif sys.argv[1:] == ["--check"]:
        sys.exit(0 if FILE.read_text() == table() else f"{FILE} is not what it should be")
    else:
        sys.exit(__doc__)
