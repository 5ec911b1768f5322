"""Tables of clients as files have them: of a, who is tested on, and of z, who is trained on."""

KINDS = {
  "commas": "client_id,loss\na,0.1\nz,0.2\n",
  "quotes": 'loss;"client_id"\n0,1;"a"\n0,2;"z"\n',
  "tabulators": "split\tClient_ID\tloss\ntest\ta\t0.1\ntrain\tz\t0.2\n",
  "blanks": "\n  client_id  loss\n0  a  0.1\n".replace("0  a", "a") + "z  0.2\n",
  "markdown": "| client_id | loss |\n|---|---:|\n| a | 0.1 |\n| z | 0.2 |\n",
  "comment": "# client_id, loss\r\na, 0.1\r\nz, 0.2\r\n",
  "column": "client_id\na\nz",
  "json": '{"models": {"constant": {"client_id": ["a", "z"], "loss": [0.1, 0.2]}}}',
  "records": '[{"client_id": "a", "loss": 0.1}, {"Client_Id": "z", "loss": 0.2}]',
  "lines": '{"client_id": "a"}\n{"client_id": "z"}\n',
}
