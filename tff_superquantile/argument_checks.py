"""What is not of its documented type is refused, before it means something else in silence."""

from privacy import checks

check_type = checks.of_type
check_not_negative = checks.not_negative
