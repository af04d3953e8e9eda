"""what rows keep away from as a JSON array"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """`requests.avoid` had names with commas between them; no name has a comma or a quotation mark."""
    op.execute("""UPDATE requests SET avoid = '["' || replace(avoid, ',', '","') || '"]' WHERE avoid IS NOT NULL""")
