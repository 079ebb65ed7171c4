# Made by ./dev python.
